"""What an answer costs: the paper's two tables of inference time, and how it grows with the number of tasks.

Three ways to the same scores, measured side by side in one process, MNIST's MLP with random weights and samples:

    collapsed     `inference.Answerer`: backbone, ω product, W product; all else was done once
    uncollapsed   the library's classifier solved anew for every call
    plain         benches/reference_loop.py: coreset through the backbone, ω drawn, inverse, for every call

"backbone" is the backbone alone, below which nothing can go.
"""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import torch

from kcl.bench import load_reference
from kcl.benchmarks.task import View
from kcl.inference import Answerer, Known
from kcl.methods.kcl import KernelContinualLearning, KernelModel
from kcl.methods.method import Memory
from kcl.nets.mlp import MLP
from kcl.settings import Settings
from kcl.training.noise import RunNoise
from kcl.training.run import build_model, seen

SHAPE, WAYS = (1, 28, 28), 10
CORESETS, BASES, TASKS, QUERIES = (5, 10, 20, 40), (256, 512, 1024, 2048), (20, 100, 1000), (1, 10_000)


@dataclass(frozen=True)
class Row:
    """One measurement: the median time of a call that answers `queries` queries."""

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
    """An MLP with random weights and tasks of random bytes."""

    def __init__(self, settings: Settings, tasks: int, device: str) -> None:
        self.settings, self.device = settings, torch.device(device)
        self.method = KernelContinualLearning(settings, WAYS)
        made = build_model(self.method, lambda: MLP(SHAPE, settings.width, settings.layers, settings.dropout), 0)
        assert isinstance(made, KernelModel)  # noqa: S101 - what the method builds
        self.model = made.to(self.device)
        random = torch.Generator().manual_seed(0)
        size = WAYS * settings.coreset_size_per_class
        self.memory: Memory = {
            "inputs": torch.randint(0, 256, (size, *SHAPE), generator=random, dtype=torch.uint8).to(self.device),
            "targets": torch.eye(WAYS, dtype=torch.uint8).repeat(size // WAYS, 1).to(self.device),
            "strength": torch.tensor(0.11, device=self.device),
            "scale": torch.tensor(1.0, device=self.device),
            "shift": torch.tensor(0.0, device=self.device),
        }
        known = {index: Known(self.memory, View()) for index in range(tasks)}
        self.answerer = Answerer(self.method, self.model, 0, lambda: known, lambda: 0)
        self.queries = torch.rand(max(QUERIES), *SHAPE, generator=random).to(self.device)

    @torch.inference_mode()
    def uncollapsed(self, x: torch.Tensor) -> torch.Tensor:
        noise = RunNoise(self.device, 0, "test noise", 0)
        classifier = self.method.classifier(self.model, seen(self.memory, View()), noise)
        return self.method.logits(self.model, classifier, x)

    @torch.inference_mode()
    def backbone(self, x: torch.Tensor) -> torch.Tensor:
        return self.method.features(self.model, x)


def measure(device: str, queries: Sequence[int] = QUERIES, tasks: Sequence[int] = TASKS) -> Iterator[Row]:
    """Rows as they are measured."""
    for table, values in (("coreset", CORESETS), ("bases", BASES)):
        for value in values:
            name = {"coreset": "coreset_size_per_class", "bases": "bases"}[table]
            yield from _compare(table, value, _Model(Settings().replace(**{name: value}), 1, device), queries)
    for count in tasks:
        yield from _many(count, _Model(Settings(), count, device), queries)


def _compare(table: str, value: int, model: _Model, queries: Sequence[int]) -> Iterator[Row]:
    reference = load_reference()
    for count in queries:
        x = model.queries[:count]
        ways: dict[str, Callable[[], Any]] = {}
        if reference is not None:
            ways["plain"] = reference.answers(model.settings, model.memory["inputs"], model.memory["targets"], x)
        ways["uncollapsed"] = partial(model.uncollapsed, x)
        ways["collapsed"] = partial(model.answerer.logits, x, 0)
        ways["backbone"] = partial(model.backbone, x)
        plain = None
        for way, call in ways.items():
            ms = _median_ms(call, count, model.device)
            plain = ms if way == "plain" else plain
            yield Row(table, value, count, way, ms, None if plain is None else plain / ms)


def _many(tasks: int, model: _Model, queries: Sequence[int]) -> Iterator[Row]:
    """A named task, another one in every call; and one query whose task nobody names, so that all are asked."""
    for index in range(tasks):
        model.answerer.head(index)
    for count in queries:
        turns = itertools.cycle([partial(model.answerer.logits, model.queries[:count], task) for task in range(tasks)])
        ms = _median_ms(partial(_next, turns), count, model.device)
        yield Row("tasks", tasks, count, "named task", ms, None)
    ms = _median_ms(lambda: model.answerer.answer(model.queries[:1]), 10_000, model.device)
    yield Row("tasks", tasks, 1, "task inferred", ms, None)


def _next(turns: Iterator[Callable[[], Any]]) -> Any:
    return next(turns)()


def _median_ms(call: Callable[[], Any], queries: int, device: torch.device) -> float:
    repeats = 300 if queries < 100 else 7
    times = []
    for _ in range(repeats + repeats // 7 + 1):
        begun = time.perf_counter()
        call()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        times.append(time.perf_counter() - begun)
    return 1e3 * statistics.median(times[-repeats:])


def table(rows: Sequence[Row]) -> str:
    """The rows for a terminal."""
    lines = [("table", "value", "queries", "way", "ms", "× plain")]
    for row in rows:
        ratio = "–" if row.times_plain is None else f"{row.times_plain:.1f}"
        lines.append((row.table, str(row.value), str(row.queries), row.way, f"{row.ms:.3f}", ratio))
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join("  ".join(f"{cell:<{width}}" for cell, width in zip(line, widths, strict=True)) for line in lines)
