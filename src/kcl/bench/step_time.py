"""How fast the engine learns: time per step for the shapes of the benchmarks, beside a plain loop and a bare SGD step.

Random bytes stand in for images; the shapes, coresets and batches are the paper's. All rows of one call are measured
in one process, one after another, so that their ratios mean something on a machine whose speed changes from day to day.
"""

from __future__ import annotations

import importlib.util
import itertools
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from kcl.benchmarks.task import Examples, Task
from kcl.core.settings import Settings
from kcl.errors import KclError
from kcl.methods.kcl_settings import KclSettings
from kcl.methods.recipes import METHODS, published_backbone, select_settings
from kcl.methods.strong_recipe import strong_settings
from kcl.nets.backbone import Backbone
from kcl.nets.mlp import MLP
from kcl.nets.resnet import cifar_resnet, miniimagenet_resnet
from kcl.ops.compiler import need_compiler
from kcl.training.stack import RunStack

TURNS, TOGETHER = 7, 4000
"""How often kcl and the plain loop are measured in turn on a CPU, and how many steps of kcl that may take."""
REFERENCE = Path("benches") / "reference_loop.py"


@dataclass(frozen=True)
class Work:
    """The shape of a benchmark: what a task looks like, which backbone learns it."""

    input_shape: tuple[int, ...]
    ways: int
    samples: int
    settings: KclSettings
    backbone: Callable[[], Backbone]
    strong: str | None = None
    """The benchmark whose strong recipe this is, with the backbone it asks for; the plain loop knows nothing of it."""

    @property
    def kcl_settings(self) -> KclSettings:
        return self.settings if self.strong is None else strong_settings(self.strong, "kcl")

    def settings_of(self, method: str) -> Settings:
        if method == "kcl":
            return self.kcl_settings
        if self.strong is not None:
            return strong_settings(self.strong, method)
        return select_settings(method, self.settings.to_dict()).replace(lr=0.01, dropout=0.0)


WORKS = {
    "mnist": Work((1, 28, 28), 10, 20_200, KclSettings(), lambda: MLP((1, 28, 28), 256, 2, 0.5)),
    "cifar100": Work((3, 32, 32), 5, 2_500, KclSettings(bases=2048, lr=0.03, dropout=0.02), lambda: cifar_resnet(0.02)),
    "miniimagenet": Work(
        (3, 84, 84),
        5,
        2_500,
        KclSettings(bases=2048, coreset_size_per_class=30, lr=0.03, dropout=0.02),
        lambda: miniimagenet_resnet(0.02),
    ),
}
for _name in ("cifar100", "miniimagenet"):
    WORKS[f"{_name}-strong"] = replace(WORKS[_name], strong=f"split-{_name}")


@dataclass(frozen=True)
class Row:
    """One measurement."""

    work: str
    engine: str
    runs: int
    ms_per_step: float
    ms_per_run_step: float
    times_reference: float | None
    """How many times as many run-steps a second as the plain loop, measured in the same call."""
    evaluation_ms: float | None
    first_task_s: float | None
    """The first task with everything it sets up: kernels, compilation, CUDA graph."""
    peak_mib: float | None

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def measure(
    works: Sequence[str],
    runs: Sequence[int],
    device: str,
    compiled: Sequence[bool],
    steps: int | None = None,
    precision: str = "tf32",
) -> Iterator[Row]:
    """Rows as they are measured: for each work the plain loop, the bare SGD step, then KCL for each number of runs.

    `precision` is the engine's; the plain loop computes in what PyTorch does by default.
    """
    for name in works:
        if name not in WORKS:
            raise KclError(f"unknown work {name!r}; known: {', '.join(WORKS)}")
        work = WORKS[name]
        task = _task(work, steps)
        plain = partial(_reference, work, task, device, steps)
        reference = plain()
        if reference is not None:
            yield Row(name, "plain loop", 1, reference, reference, 1.0, None, None, None)
        for method in ("naive-sgd", "kcl"):
            for fused in compiled if method == "kcl" else (False,):
                for count in runs if device == "cuda" else (1,):
                    yield _engine(name, work, task, method, count, device, fused, precision, reference, plain)


def _task(work: Work, steps: int | None) -> Task:
    settings, generator = work.kcl_settings, torch.Generator().manual_seed(0)
    coreset = work.ways * settings.coreset_size_per_class
    count = work.samples if steps is None else coreset + steps * settings.batch_size
    inputs = torch.randint(0, 256, (count, *work.input_shape), generator=generator, dtype=torch.uint8)
    labels = torch.arange(count) % work.ways
    test = torch.arange(min(count, 10_000 if work.input_shape[0] == 1 else 500))
    return Task(
        0, Examples(inputs, torch.arange(count), labels), Examples(inputs, test, labels[test]), tuple(range(work.ways))
    )


def _reference(work: Work, task: Task, device: str, steps: int | None) -> float | None:
    """Milliseconds a step of the plain loop, where the file that holds it is at hand; it knows the paper's recipe."""
    module = load_reference() if work.strong is None else None
    few = min(steps or 100, 100)
    return None if module is None else float(module.milliseconds_per_step(task, work.settings, device, few))


def load_reference() -> Any:
    """The plain loop's module, where the file is at hand; else None."""
    if not REFERENCE.exists():
        return None
    spec = importlib.util.spec_from_file_location("reference_loop", REFERENCE)
    if spec is None or spec.loader is None:
        return None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _engine(
    name: str,
    work: Work,
    task: Task,
    method: str,
    runs: int,
    device: str,
    fused: bool,
    precision: str,
    reference: float | None,
    plain: Callable[[], float | None],
) -> Row:
    settings = work.settings_of(method)
    methods = [METHODS[method](settings, work.ways) for _ in range(runs)]
    cuda = device == "cuda"
    if cuda:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    elif fused:
        need_compiler()
    make = work.backbone if work.strong is None else partial(published_backbone, work.input_shape, settings)
    plain_stack = not cuda and not fused
    learner = RunStack(methods, [make] * runs, range(runs), device, fused, precision, plain=plain_stack)
    first = _seconds(lambda: learner.learn([task] * runs, lambda _: None))
    coreset = settings.coreset_size_per_class * work.ways if isinstance(settings, KclSettings) else 0
    steps = (len(task.train) - coreset) // settings.batch_size * settings.updates_per_batch
    again = Task(1, task.train, task.test, task.classes)
    if cuda:
        step = 1e3 * _seconds(lambda: learner.learn([again] * runs, lambda _: None)) / steps
        ratio = None if reference is None else reference / (step / runs)
    else:
        step, ratio = _in_turns(learner, again, plain, max(1, min(TURNS, TOGETHER // steps)))
    learner.accuracy([again] * runs)
    evaluation = _seconds(lambda: learner.accuracy([again] * runs))
    peak = torch.cuda.max_memory_allocated() / 2**20 if cuda else None
    label = {"naive-sgd": "bare SGD step", "kcl": "kcl"}[method]
    label += (", compiled" if fused else "") + (", bf16" if fused and not cuda and precision == "bf16" else "")
    return Row(name, label, runs, step, step / runs, ratio, 1e3 * evaluation, first, peak)


def _in_turns(
    learner: RunStack, task: Task, plain: Callable[[], float | None], turns: int
) -> tuple[float, float | None]:
    """Milliseconds a step on a CPU, and how many times the plain loop's speed that is: medians over several turns of
    both, because a CPU that others use too is slow for minutes, then fast again.
    """
    steps, ratios = [], []
    for index in range(1, turns + 1):
        reference, ticks = plain(), list[float]()
        own = Task(index, task.train, task.test, task.classes)
        learner.learn([own], lambda _, ticks=ticks: ticks.append(time.perf_counter()))  # type: ignore[misc]
        steps.append(1e3 * statistics.median(later - sooner for sooner, later in itertools.pairwise(ticks)))
        ratios += [] if reference is None else [reference / steps[-1]]
    return statistics.median(steps), statistics.median(ratios) if ratios else None


def _seconds(action: Callable[[], object]) -> float:
    begun = time.perf_counter()
    action()
    return time.perf_counter() - begun


def table(rows: Sequence[Row]) -> str:
    """The rows for a terminal."""
    lines = [
        ("work", "engine", "runs", "ms/step", "ms/run-step", "× plain loop", "evaluation ms", "first task s", "MiB")
    ]
    for row in rows:
        lines.append(
            (
                row.work,
                row.engine,
                str(row.runs),
                f"{row.ms_per_step:.3f}",
                f"{row.ms_per_run_step:.3f}",
                "–" if row.times_reference is None else f"{row.times_reference:.1f}",
                "–" if row.evaluation_ms is None else f"{row.evaluation_ms:.1f}",
                "–" if row.first_task_s is None else f"{row.first_task_s:.1f}",
                "–" if row.peak_mib is None else f"{row.peak_mib:.0f}",
            )
        )
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join("  ".join(f"{cell:<{width}}" for cell, width in zip(line, widths, strict=True)) for line in lines)
