"""What an answer costs: the paper's two tables of inference time, and how it grows with the number of tasks.

Three ways to compute the same scores, measured in turn in one process, on a backbone with random weights and samples:

    collapsed     `inference.Answerer`: backbone, ω product, W product; everything else was computed once
    uncollapsed   the library's classifier, solved anew in every call
    plain         `bench.reference_loop`: coreset through the backbone, ω drawn, inverse, in every call

"backbone" is the backbone alone, the lower bound. The shapes are those of `step_time.WORKS`: MNIST's MLP, and
CIFAR-100's ResNet18 with tasks of five classes, which the paper's tables are about.
"""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar

import torch

from kcl.bench import reference_loop
from kcl.bench.step_time import WORKS, Work, seconds_taken
from kcl.benchmarks.task import View
from kcl.errors import KclError
from kcl.functional.noise import RunNoise
from kcl.methods.kcl import KernelContinualLearning
from kcl.methods.method import Memory
from kcl.models.inference import Answerer
from kcl.models.joint_head import JointAnswers
from kcl.models.lessons import LearnedTask
from kcl.training.stack import RunStack

CORESETS, BASES, TASKS = (5, 10, 20, 40), (256, 512, 1024, 2048), (20, 100, 1000)
WAYS = 5
"""Classes per task where all classes are compared."""
QUERIES = {"mnist": (1, 10_000), "cifar100": (1, 500)}
"""One query, and all test samples of a task."""
SETTINGS = {"coreset": ("coreset_size_per_class", CORESETS), "bases": ("bases", BASES)}
"""What each of the paper's tables varies."""
ROUNDS, CALLS, SECONDS = 7, 15, 2.0
"""Each of `ROUNDS` rounds times a call `CALLS` times, or fewer once its share of `SECONDS` is spent."""
Key = TypeVar("Key", bound=Hashable)
Calls = dict[Key, Callable[[], Any]]


@dataclass(frozen=True)
class AnswerTime:
    """One measurement: the median time of a call that answers `queries` queries."""

    work: str
    table: str
    value: int
    queries: int
    way: str
    ms: float
    times_plain: float | None = None
    """Speed relative to the plain way, measured in the same call."""


COLUMNS = {
    **{name: (name, "") for name in ("work", "table", "value", "queries", "way")},
    "ms": ("ms", ".3f"),
    "× plain": ("times_plain", ".1f"),
}
"""Of the table: by their headings, the fields and their formats."""


class _Model:
    """A backbone with random weights and tasks of random bytes."""

    def __init__(self, work: Work, changes: dict[str, int], tasks: int, queries: int, device: str) -> None:
        self.settings, self.device = work.settings.replace(**changes), torch.device(device)
        self.method = KernelContinualLearning(self.settings, work.ways)
        stack = RunStack([self.method], [work.backbone_of("kcl")], [0], self.device, precision="float32", plain=True)
        random, size = torch.Generator().manual_seed(0), work.ways * self.settings.coreset_size_per_class
        images = torch.randint(0, 256, (size, *work.input_shape), generator=random, dtype=torch.uint8)
        self.memory: Memory = {
            "inputs": images.to(self.device),
            "targets": torch.eye(work.ways, dtype=torch.uint8).repeat(size // work.ways, 1).to(self.device),
            "strength": torch.tensor(0.11, device=self.device),
            "scale": torch.tensor(1.0, device=self.device),
            "shift": torch.tensor(0.0, device=self.device),
        }
        stacked = {name: tensor[None] for name, tensor in self.memory.items()}
        stack.kept = dict.fromkeys(range(tasks), (stacked, View()))
        self.answerer = Answerer(stack)
        self.queries = torch.rand(queries, *work.input_shape, generator=random).to(self.device)

    @torch.inference_mode()
    def uncollapsed(self, x: torch.Tensor) -> torch.Tensor:
        noise = RunNoise(self.device, 0, "test noise", 0)
        memory = self.memory | {"inputs": View().scale(self.memory["inputs"])}
        classifier = self.method.classifier(self.answerer.model, self.method.show(memory), noise)
        return self.method.logits(self.answerer.model, classifier, x)

    @torch.inference_mode()
    def backbone(self, x: torch.Tensor) -> torch.Tensor:
        return self.method.features(self.answerer.model, x)


def measure(device: str, works: Sequence[str] = ()) -> Iterator[AnswerTime]:
    """Rows as they are measured: the paper's tables for each work (default: all), and for MNIST the growth with the
    number of tasks."""
    for name in works or QUERIES:
        if name not in QUERIES:
            raise KclError(f"inference is not measured for {name!r}; known: {', '.join(QUERIES)}")
        yield from paper_tables(name, WORKS[name], QUERIES[name], device)
        if name == "mnist":
            for count in TASKS:
                model = _Model(WORKS[name], {}, count, max(QUERIES[name]), device)
                yield from _many_tasks(name, count, model, QUERIES[name])
                yield from _all_classes(name, count, device)


def paper_tables(
    name: str, work: Work, queries: Sequence[int], device: str, seconds: float = SECONDS
) -> Iterator[AnswerTime]:
    """Time against the coreset's size and against the number of bases, with about `seconds` at most for each number.

    All numbers of one table are measured in turn, so that whatever slows the machine for a while slows all of them.
    """
    for table, (setting, values) in SETTINGS.items():
        models = {value: _Model(work, {setting: value}, 1, max(queries), device) for value in values}
        for count in queries:
            # The plain way draws from PyTorch's global generator.
            with torch.random.fork_rng(devices=[torch.device(device)] if device == "cuda" else []):
                ways = {value: _ways(model, count) for value, model in models.items()}
                calls = {(value, way): call for value, by_way in ways.items() for way, call in by_way.items()}
                medians = _median_ms(calls, torch.device(device), seconds)
            for (value, way), ms in medians.items():
                yield AnswerTime(name, table, value, count, way, ms, medians[value, "plain"] / ms)


def _ways(model: _Model, queries: int) -> Calls[str]:
    x, memory = model.queries[:queries], model.memory
    return {
        "plain": reference_loop.classify(model.settings, memory["inputs"], memory["targets"], x),
        "uncollapsed": partial(model.uncollapsed, x),
        "collapsed": partial(model.answerer.logits, x, 0),
        "backbone": partial(model.backbone, x),
    }


def _many_tasks(name: str, tasks: int, model: _Model, queries: Sequence[int]) -> Iterator[AnswerTime]:
    """A named task, a different one in every call; and one query whose task is inferred, so that all heads answer."""
    for index in range(tasks):
        model.answerer.head(index)
    for count in queries:
        turns = itertools.cycle([partial(model.answerer.logits, model.queries[:count], task) for task in range(tasks)])
        ms = _median_ms({0: lambda turns=turns: next(turns)()}, model.device)[0]  # type: ignore[misc]
        yield AnswerTime(name, "tasks", tasks, count, "named task", ms)
    ms = _median_ms({0: lambda: model.answerer.answer(model.queries[:1])}, model.device)[0]
    yield AnswerTime(name, "tasks", tasks, 1, "task inferred", ms)


def _all_classes(name: str, tasks: int, device: str) -> Iterator[AnswerTime]:
    """One query, no task named, all classes of tasks of `WAYS` compared by one classifier: its scores alone, and the
    whole answer. How many samples the classifier is made of makes no difference.
    """
    work = replace(WORKS[name], ways=WAYS)
    model = _Model(work, {"coreset_size_per_class": 1}, tasks, 1, device)
    learned = {
        str(task): LearnedTask(task, tuple(range(WAYS * task, WAYS * (task + 1))), (1,) * WAYS) for task in range(tasks)
    }
    joint = JointAnswers(model.answerer, learned)
    calls: Calls[str] = {
        "all classes, scores": lambda: joint.logits([model.queries]),
        "all classes, answer": lambda: joint.answer([model.queries]),
    }
    for way, ms in _median_ms(calls, model.device).items():
        yield AnswerTime(name, "tasks", tasks, 1, way, ms)


def _median_ms(calls: Calls[Key], device: torch.device, limit: float = SECONDS) -> dict[Key, float]:
    """The median time of every call; the calls take turns."""
    times: dict[Key, list[float]] = {key: [] for key in calls}
    for call in calls.values():
        seconds_taken(call, device)  # warms up
    for _ in range(ROUNDS):
        for key, call in calls.items():
            until = time.perf_counter() + limit / ROUNDS
            for number in range(CALLS):
                if number and time.perf_counter() > until:
                    break
                times[key].append(seconds_taken(call, device))
    return {key: 1e3 * statistics.median(taken) for key, taken in times.items()}
