"""What an answer costs: the paper's two tables of inference time, and how it grows with the number of tasks.

Three ways to the same scores, measured side by side in one process, on a backbone with random weights and samples:

    collapsed     `inference.Answerer`: backbone, ω product, W product; all else was done once
    uncollapsed   the library's classifier solved anew for every call
    plain         benches/reference_loop.py: coreset through the backbone, ω drawn, inverse, for every call

"backbone" is the backbone alone, below which nothing can go. The shapes are those of `bench.WORKS`: MNIST's MLP, and
CIFAR-100's ResNet18 with tasks of five classes, which the paper's tables are about.
"""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, TypeVar

import torch

from kcl.bench.step_time import WORKS, Work, load_reference
from kcl.benchmarks.task import View
from kcl.errors import KclError
from kcl.methods.kcl import KernelContinualLearning, KernelModel
from kcl.methods.method import Memory
from kcl.models.inference import Answerer, KnownTask
from kcl.training.draws import RunNoise
from kcl.training.stack import build_model

CORESETS, BASES, TASKS = (5, 10, 20, 40), (256, 512, 1024, 2048), (20, 100, 1000)
QUERIES = {"mnist": (1, 10_000), "cifar100": (1, 500)}
"""One, and all test samples of a task."""
SETTINGS = {"coreset": ("coreset_size_per_class", CORESETS), "bases": ("bases", BASES)}
"""What each of the paper's tables varies."""
ROUNDS, CALLS, SECONDS = 7, 15, 2.0
"""In each of so many turns a call is made so often, or until its share of the seconds is spent."""
Key = TypeVar("Key", bound=Hashable)


@dataclass(frozen=True)
class Row:
    """One measurement: the median time of a call that answers `queries` queries."""

    work: str
    table: str
    value: int
    queries: int
    way: str
    ms: float
    times_plain: float | None
    """How many times as fast as the plain way, measured in the same call."""

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


class _Model:
    """A backbone with random weights and tasks of random bytes."""

    def __init__(self, work: Work, changes: dict[str, int], tasks: int, queries: int, device: str) -> None:
        self.settings, self.device = work.settings.replace(**changes), torch.device(device)
        self.method = KernelContinualLearning(self.settings, work.ways)
        made = build_model(self.method, work.backbone, 0)
        assert isinstance(made, KernelModel)  # noqa: S101 - what the method builds
        self.model = made.to(self.device)
        random, size = torch.Generator().manual_seed(0), work.ways * self.settings.coreset_size_per_class
        images = torch.randint(0, 256, (size, *work.input_shape), generator=random, dtype=torch.uint8)
        self.memory: Memory = {
            "inputs": images.to(self.device),
            "targets": torch.eye(work.ways, dtype=torch.uint8).repeat(size // work.ways, 1).to(self.device),
            "strength": torch.tensor(0.11, device=self.device),
            "scale": torch.tensor(1.0, device=self.device),
            "shift": torch.tensor(0.0, device=self.device),
        }
        self.answerer = Answerer(self.method, self.model, 0)
        self.answerer.tasks = {index: KnownTask(self.memory, View()) for index in range(tasks)}
        self.queries = torch.rand(queries, *work.input_shape, generator=random).to(self.device)

    @torch.inference_mode()
    def uncollapsed(self, x: torch.Tensor) -> torch.Tensor:
        noise = RunNoise(self.device, 0, "test noise", 0)
        memory = self.memory | {"inputs": View().scale(self.memory["inputs"])}
        classifier = self.method.classifier(self.model, self.method.show(memory), noise)
        return self.method.logits(self.model, classifier, x)

    @torch.inference_mode()
    def backbone(self, x: torch.Tensor) -> torch.Tensor:
        return self.method.features(self.model, x)


def measure(device: str, works: Sequence[str] = ()) -> Iterator[Row]:
    """Rows as they are measured: the paper's tables for every work, all of them where none is named; with MNIST's the
    growth with the number of tasks."""
    for name in works or QUERIES:
        if name not in QUERIES:
            raise KclError(f"no cost of an answer is measured for {name!r}; known: {', '.join(QUERIES)}")
        yield from paper_tables(name, WORKS[name], QUERIES[name], device)
        if name == "mnist":
            for count in TASKS:
                yield from _many(name, count, _Model(WORKS[name], {}, count, max(QUERIES[name]), device), QUERIES[name])


def paper_tables(name: str, work: Work, queries: Sequence[int], device: str, seconds: float = SECONDS) -> Iterator[Row]:
    """Time against the coreset's size, and against the number of bases; `seconds` at most for each number, about.

    The numbers of one table take turns, ways and values alike, so that what slows the machine for a while slows all.
    """
    reference = load_reference()
    for table, (setting, values) in SETTINGS.items():
        models = {value: _Model(work, {setting: value}, 1, max(queries), device) for value in values}
        for count in queries:
            with torch.random.fork_rng(devices=[torch.device(device)] if device == "cuda" else []):
                calls = {
                    (value, way): call
                    for value, model in models.items()
                    for way, call in _ways(model, count, reference).items()
                }
                medians = _median_ms(calls, torch.device(device), seconds)
            for (value, way), ms in medians.items():
                plain = medians.get((value, "plain"))
                yield Row(name, table, value, count, way, ms, None if plain is None else plain / ms)


def _ways(model: _Model, queries: int, reference: Any) -> dict[str, Callable[[], Any]]:
    x, ways = model.queries[:queries], dict[str, Callable[[], Any]]()
    if reference is not None:  # it draws from PyTorch's global generator
        ways["plain"] = reference.answers(model.settings, model.memory["inputs"], model.memory["targets"], x)
    ways["uncollapsed"] = partial(model.uncollapsed, x)
    ways["collapsed"] = partial(model.answerer.logits, x, 0)
    ways["backbone"] = partial(model.backbone, x)
    return ways


def _many(name: str, tasks: int, model: _Model, queries: Sequence[int]) -> Iterator[Row]:
    """A named task, another one in every call; and one query whose task nobody names, so that all are asked."""
    for index in range(tasks):
        model.answerer.head(index)
    for count in queries:
        turns = itertools.cycle([partial(model.answerer.logits, model.queries[:count], task) for task in range(tasks)])
        [ms] = _median_ms({"": partial(_next, turns)}, model.device).values()
        yield Row(name, "tasks", tasks, count, "named task", ms, None)
    [ms] = _median_ms({"": lambda: model.answerer.answer(model.queries[:1])}, model.device).values()
    yield Row(name, "tasks", tasks, 1, "task inferred", ms, None)


def _next(turns: Iterator[Callable[[], Any]]) -> Any:
    return next(turns)()


def _median_ms(calls: dict[Key, Callable[[], Any]], device: torch.device, seconds: float = SECONDS) -> dict[Key, float]:
    """Of every call, in turns.

    Nothing is pending on the device when a clock is started, and a call has ended on it when the clock is stopped.
    """
    times: dict[Key, list[float]] = {key: [] for key in calls}
    for call in calls.values():
        _timed(call, device)  # warms up
    for _ in range(ROUNDS):
        for key, call in calls.items():
            until = time.perf_counter() + seconds / ROUNDS
            for number in range(CALLS):
                if number and time.perf_counter() > until:
                    break
                times[key].append(_timed(call, device))
    return {key: 1e3 * statistics.median(own) for key, own in times.items()}


def _timed(call: Callable[[], Any], device: torch.device) -> float:
    begun = time.perf_counter()
    call()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - begun


def table(rows: Sequence[Row]) -> str:
    """The rows for a terminal."""
    lines = [("work", "table", "value", "queries", "way", "ms", "× plain")]
    for row in rows:
        ratio = "–" if row.times_plain is None else f"{row.times_plain:.1f}"
        lines.append((row.work, row.table, str(row.value), str(row.queries), row.way, f"{row.ms:.3f}", ratio))
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join("  ".join(f"{cell:<{width}}" for cell, width in zip(line, widths, strict=True)) for line in lines)
