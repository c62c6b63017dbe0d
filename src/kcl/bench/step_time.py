"""How fast the engine learns: time per step for the shapes of the benchmarks, beside a plain loop and a bare SGD step.

Random bytes stand in for images; the shapes, coresets and batches are the paper's. All rows of one call are measured
one after another in one process, so that their ratios hold on a machine whose speed changes from day to day.
"""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch

from kcl.bench.reference_loop import milliseconds_per_step
from kcl.benchmarks.task import Examples, Task
from kcl.core.settings import Settings
from kcl.errors import KclError
from kcl.methods.kcl_settings import KclSettings
from kcl.methods.recipes import METHODS, published_backbone, select_settings
from kcl.methods.strong_recipe import strong_settings
from kcl.nets.backbone import Backbone
from kcl.ops.torch_private import need_compiler
from kcl.training.stack import RunStack

ROUNDS, MAX_STEPS = 7, 4000
"""On a CPU kcl and the plain loop take turns for this many rounds, fewer where kcl would take more steps than this."""
REFERENCE_STEPS = 100
Reference = Callable[[], float | None]


@dataclass(frozen=True)
class Work:
    """The shape of a benchmark: what a task looks like, and the settings with which KCL learns it."""

    input_shape: tuple[int, ...]
    ways: int
    samples: int
    settings: KclSettings
    strong: str | None = None
    """The benchmark whose strong recipe is measured; the plain loop does not know the recipe."""

    @property
    def kcl_settings(self) -> KclSettings:
        return self.settings if self.strong is None else strong_settings(self.strong, "kcl")

    def settings_of(self, method: str) -> Settings:
        if self.strong is not None:
            return strong_settings(self.strong, method)
        return self.settings if method == "kcl" else select_settings(method, self.settings.to_dict()).replace(lr=0.01)

    def backbone_of(self, method: str) -> Callable[[], Backbone]:
        return partial(published_backbone, self.input_shape, self.settings_of(method))


_CIFAR100 = KclSettings(backbone="cifar-resnet", bases=2048, lr=0.03, dropout=0.02)
_MINIIMAGENET = _CIFAR100.replace(backbone="miniimagenet-resnet", coreset_size_per_class=30)
WORKS = {
    "mnist": Work((1, 28, 28), 10, 20_200, KclSettings()),
    "cifar100": Work((3, 32, 32), 5, 2_500, _CIFAR100),
    "miniimagenet": Work((3, 84, 84), 5, 2_500, _MINIIMAGENET),
}
for _name in ("cifar100", "miniimagenet"):
    WORKS[f"{_name}-strong"] = replace(WORKS[_name], strong=f"split-{_name}")


@dataclass(frozen=True)
class StepTime:
    """One measurement."""

    work: str
    engine: str
    runs: int
    ms_per_step: float
    ms_per_run_step: float
    times_reference: float | None
    """Run-steps per second, as a multiple of the plain loop's in the same call."""
    evaluation_ms: float | None = None
    first_task_s: float | None = None
    """The first task, including one-time set-up: kernels, compilation, CUDA graph."""
    peak_mib: float | None = None


COLUMNS = {
    **{name: (name, "") for name in ("work", "engine", "runs")},
    "ms/step": ("ms_per_step", ".3f"),
    "ms/run-step": ("ms_per_run_step", ".3f"),
    "× plain loop": ("times_reference", ".1f"),
    "evaluation ms": ("evaluation_ms", ".1f"),
    "first task s": ("first_task_s", ".1f"),
    "MiB": ("peak_mib", ".0f"),
}
"""Of the table: by their headings, the fields and their formats."""


def measure(
    works: Sequence[str], runs: Sequence[int], device: str, compiled: Sequence[bool], steps: int | None = None,
    precision: str = "tf32",
) -> Iterator[StepTime]:  # fmt: skip
    """Rows as they are measured: for each work the plain loop, the bare SGD step, then KCL for each number of runs.

    `precision` is the engine's; the plain loop computes in PyTorch's default.
    """
    for name in works:
        if name not in WORKS:
            raise KclError(f"unknown work {name!r}; known: {', '.join(WORKS)}")
        work = WORKS[name]
        task = _task(work, steps)
        reference = partial(_reference, work, task, device, steps)
        reference_ms = reference()
        if reference_ms is not None:
            yield StepTime(name, "plain loop", 1, reference_ms, reference_ms, 1.0)
        for method in ("naive-sgd", "kcl"):
            for fused in compiled if method == "kcl" else (False,):
                for count in runs if device == "cuda" else (1,):
                    learner = _learner(work, method, count, device, fused, precision)
                    engine = _label(method, device, fused, precision)
                    yield _measure(name, engine, learner, task, reference, reference_ms)


def _task(work: Work, steps: int | None) -> Task:
    settings, generator = work.kcl_settings, torch.Generator().manual_seed(0)
    coreset = work.ways * settings.coreset_size_per_class
    count = work.samples if steps is None else coreset + steps * settings.batch_size
    inputs = torch.randint(0, 256, (count, *work.input_shape), generator=generator, dtype=torch.uint8)
    labels = torch.arange(count) % work.ways
    test = torch.arange(min(count, 10_000 if work.input_shape[0] == 1 else 500))
    train, tested = Examples(inputs, torch.arange(count), labels), Examples(inputs, test, labels[test])
    return Task(0, train, tested, tuple(range(work.ways)))


def _reference(work: Work, task: Task, device: str, steps: int | None) -> float | None:
    """Milliseconds per step of the plain loop, which knows the paper's recipe only."""
    if work.strong is not None:
        return None
    with torch.random.fork_rng(devices=[torch.device(device)] if device == "cuda" else []):  # it seeds the global one
        return milliseconds_per_step(task, work.settings, device, min(steps or REFERENCE_STEPS, REFERENCE_STEPS))


def _learner(work: Work, method: str, runs: int, device: str, fused: bool, precision: str) -> RunStack:
    methods = [METHODS[method](work.settings_of(method), work.ways) for _ in range(runs)]
    if device == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    elif fused:
        need_compiler()
    plain = device != "cuda" and not fused
    return RunStack(methods, [work.backbone_of(method)] * runs, range(runs), device, fused, precision, plain=plain)


def _label(method: str, device: str, fused: bool, precision: str) -> str:
    label = {"naive-sgd": "bare SGD step", "kcl": "kcl"}[method] + (", compiled" if fused else "")
    return label + (", bf16" if fused and device == "cpu" and precision == "bf16" else "")


def _measure(
    work: str, engine: str, learner: RunStack, task: Task, reference: Reference, reference_ms: float | None
) -> StepTime:
    settings, runs, on_gpu = learner.method.settings, learner.count, learner.device.type == "cuda"
    first_task_s = seconds_taken(lambda: learner.learn([task] * runs, lambda _: None), learner.device)
    coreset = settings.coreset_size_per_class * task.ways if isinstance(settings, KclSettings) else 0
    steps = (len(task.train) - coreset) // settings.batch_size * settings.updates_per_batch
    second = replace(task, index=1)
    if on_gpu:
        step_ms = 1e3 * seconds_taken(lambda: learner.learn([second] * runs, lambda _: None), learner.device) / steps
        ratio = None if reference_ms is None else reference_ms / (step_ms / runs)
    else:
        step_ms, ratio = _in_turns(learner, second, reference, max(1, min(ROUNDS, MAX_STEPS // steps)))
    learner.accuracy([second] * runs)
    evaluation_ms = 1e3 * seconds_taken(lambda: learner.accuracy([second] * runs), learner.device)
    peak_mib = torch.cuda.max_memory_allocated() / 2**20 if on_gpu else None
    return StepTime(work, engine, runs, step_ms, step_ms / runs, ratio, evaluation_ms, first_task_s, peak_mib)


def _in_turns(learner: RunStack, task: Task, reference: Reference, rounds: int) -> tuple[float, float | None]:
    """Milliseconds per step on a CPU and the speed relative to the plain loop.

    Both are medians over rounds in which the two take turns: a shared CPU is slow for minutes, then fast again.
    """
    step_ms, ratios = [], []
    for index in range(1, rounds + 1):
        reference_ms, ticks = reference(), list[float]()
        learner.learn([replace(task, index=index)], lambda _, ticks=ticks: ticks.append(time.perf_counter()))  # type: ignore[misc]
        step_ms.append(1e3 * statistics.median(later - sooner for sooner, later in itertools.pairwise(ticks)))
        ratios += [] if reference_ms is None else [reference_ms / step_ms[-1]]
    return statistics.median(step_ms), statistics.median(ratios) if ratios else None


def seconds_taken(action: Callable[[], object], device: torch.device) -> float:
    """How long it takes until it has finished on the device."""
    started = time.perf_counter()
    action()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - started
