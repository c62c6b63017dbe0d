"""Small runs on made-up images: stacked, each as a plain stack of one, or by the reference."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from kcl.benchmarks.joint_task import join
from kcl.benchmarks.moved_pixels import PermutedPixels
from kcl.benchmarks.task import Examples, Stream, Task, View
from kcl.core.randomness import numpy_generator
from kcl.core.settings import Settings
from kcl.data.dataset import Dataset
from kcl.methods.method import Method
from kcl.methods.recipes import METHODS, select_settings
from kcl.nets.backbone import Backbone
from kcl.nets.mlp import MLP
from kcl.nets.resnet import ResNet18
from kcl.ops import draw_philox
from kcl.training.stack import RunStack
from kcl.training.state import memory_of
from like_gpu import source_as_separate
from reference_run import ReferenceRun, ReferenceRuns

SMALL = {"bases": 32, "width": 16, "coreset_size_per_class": 4, "batch_size": 10, "lr_floor": 0.0, "ewc_window": 3}
# Every number that may differ between stacked runs does.
NUMBERS: list[dict[str, float]] = [
    {"lr": 0.05, "momentum": 0.8, "tau": 0.01, "dropout": 0.2, "ridge_strength": 0.1, "lr_decay": 0.8},
    {"lr": 0.1, "momentum": 0.5, "tau": 0.1, "dropout": 0.4, "ridge_strength": 0.5, "lr_floor": 0.09},
    {"lr": 0.03, "momentum": 0.0, "tau": 0.0, "dropout": 0.1, "ridge_strength": 1.0, "lr_decay": 1.0},
]
STRENGTHS: list[dict[str, float]] = [
    {"ewc_strength": 0.3, "ewc_decay": 0.9},
    {"ewc_strength": 1.0, "ewc_decay": 0.5},
    {"ewc_strength": 2.0, "ewc_decay": 1.0},
]
GAMMAS = [0.5, 1.0, 0.2]
SHAPES = {"mlp": (1, 4, 4), "resnet": (3, 6, 6)}
# BatchNorm over a few samples is chaotic: small steps and little dropout keep two roundings of a run together.
CALMER = {"mlp": {}, "resnet": {"lr": 0.1, "lr_floor": 0.1, "dropout": 0.1}}


def _images(samples: int, shape: Sequence[int], seed: int, classes: int = 3) -> tuple[Tensor, Tensor]:
    """Bytes around one centre for each of some classes, the classes in turn."""
    labels = torch.arange(samples) % classes
    centres = torch.rand(classes, *shape, generator=torch.Generator().manual_seed(0))
    noise = torch.rand(samples, *shape, generator=torch.Generator().manual_seed(seed))
    return (127 * centres[labels] + 128 * noise).to(torch.uint8), labels


@pytest.fixture
def make_dataset() -> Callable[..., Dataset]:
    """Three classes of small images; 40 of them to test on."""

    def make(samples: int = 60, shape: Sequence[int] = SHAPES["mlp"]) -> Dataset:
        return Dataset("made up", *_images(samples, shape, 1), *_images(40, shape, 2), ("0", "1", "2"))

    return make


class SplitClasses(Stream):
    """Every class in one task only, two a task, which two being the seed's choice; all samples in one array."""

    def __init__(self, samples: int, shape: Sequence[int], tasks: int, seed: int) -> None:
        self.task_count, self.input_shape = tasks, tuple(shape)
        self.class_labels = tuple(range(2 * tasks))
        self.pairs = numpy_generator(seed, "split").permutation(2 * tasks).reshape(tasks, 2)
        self.train, self.test = _split_images(samples * tasks, tuple(shape), tasks)

    def task(self, index: int) -> Task:
        classes = tuple(self.pairs[index].tolist())
        return Task(index, _of(classes, *self.train), _of(classes, *self.test), classes)


@functools.cache
def _split_images(samples: int, shape: tuple[int, ...], tasks: int) -> tuple[Any, Any]:
    return _images(samples, shape, 1, 2 * tasks), _images(40 * tasks, shape, 2, 2 * tasks)


def _of(classes: tuple[int, ...], inputs: Tensor, labels: Tensor) -> Examples:
    rows = torch.isin(labels, torch.tensor(classes)).nonzero().flatten()
    return Examples(inputs, rows, (labels[rows] == classes[1]).long())


def _backbone(net: str, settings: Settings) -> Backbone:
    if net == "mlp":
        return MLP(SHAPES[net], settings.width, settings.layers, settings.dropout)
    widths, strides = ((4, 8), (1, 2)) if settings.feature_stages == 1 else ((4, 6, 8), (1, 2, 1))
    return ResNet18(widths, strides, 3, settings.dropout, settings.feature_stages)


@dataclass(frozen=True)
class Runs:
    """Some runs of one method."""

    method: str
    net: str
    settings: list[Settings]
    seeds: list[int]
    streams: list[Stream]

    def __getitem__(self, which: Sequence[int]) -> Runs:
        """Some of the runs."""
        parts = {name: [getattr(self, name)[run] for run in which] for name in ("settings", "seeds", "streams")}
        return replace(self, **parts)

    def but(self, run: int, **changes: Any) -> Runs:
        """The same with a setting of one run changed."""
        settings = [each.replace(**changes) if run == other else each for other, each in enumerate(self.settings)]
        return replace(self, settings=settings)

    def tasks(self, index: int) -> list[Task]:
        return [stream[index] for stream in self.streams]

    @property
    def training_count(self) -> int:
        """The number of training tasks."""
        return 1 if METHODS[self.method].joint else len(self.streams[0])

    def training_tasks(self, index: int) -> list[Task]:
        """What each run learns at once: a task, or all tasks joined."""
        if METHODS[self.method].joint:
            return [join(list(stream), len(stream.class_labels)) for stream in self.streams]
        return self.tasks(index)

    def methods(self) -> list[Method]:
        made = METHODS[self.method]
        return [
            made(settings, len(stream.class_labels), sum(task.ways for task in stream))
            for settings, stream in zip(self.settings, self.streams, strict=True)
        ]

    def backbones(self) -> list[Callable[[], Backbone]]:
        return [partial(_backbone, self.net, settings) for settings in self.settings]

    def separate(self) -> ReferenceRuns:
        """By the reference, one after another."""
        parts = zip(self.methods(), self.backbones(), self.seeds, strict=True)
        return ReferenceRuns([ReferenceRun(method, backbone, seed) for method, backbone, seed in parts])

    def plain(self) -> RunStack:
        """One run without vmap."""
        return RunStack(self.methods(), self.backbones(), self.seeds, plain=True)

    def stacked(self, compiled: bool = False, draws_as_compiled: bool = False, precision: str = "float32") -> RunStack:
        learner = RunStack(self.methods(), self.backbones(), self.seeds, "cpu", compiled, precision=precision)
        if draws_as_compiled:
            other = RunStack(self.methods(), self.backbones(), self.seeds, "cpu", compiled=True)
            learner.source = other.source  # type: ignore[method-assign]
        return learner

    def one_by_one(self) -> list[Runs]:
        return [self[[run]] for run in range(len(self.seeds))]

    def groups(self, engine: str) -> list[Runs]:
        """The runs as an engine trains them: "stacked" all together, "plain" one by one."""
        return [self] if engine == "stacked" else self.one_by_one()

    def learner(self, engine: str) -> RunStack:
        return self.stacked() if engine == "stacked" else self.plain()


@pytest.fixture(autouse=True)
def _stacks_draw_as_plain_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RunStack, "source", source_as_separate)


@pytest.fixture
def _draws_without_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    """The draws of compiled steps by PyTorch: their own kernel takes a C++ compiler."""
    monkeypatch.setattr(draw_philox, "_on_cpu", [])


@pytest.fixture
def make_runs(make_dataset: Callable[..., Dataset]) -> Callable[..., Runs]:
    """Three runs with different seeds and different numbers; further keywords are settings of all of them."""

    def make(
        method: str = "kcl", net: str = "mlp", samples: int = 60, tasks: int = 2, split: bool = False, **settings: Any
    ) -> Runs:
        dataset = make_dataset(samples, SHAPES[net])
        seeds = [3, 11, 2**40 + 1]
        all_settings = []
        for numbers, gamma, strengths in zip(NUMBERS, GAMMAS, STRENGTHS, strict=True):
            calmer = {name: value * CALMER[net].get(name, 1.0) for name, value in numbers.items()}
            gammas = {"rbf_gamma": gamma, "laplacian_gamma": gamma}
            all_settings.append(select_settings(method, {**SMALL, **calmer, **gammas, **strengths, **settings}))
        streams: list[Stream] = [
            SplitClasses(samples, SHAPES[net], tasks, seed) if split else PermutedPixels(dataset, tasks, seed)
            for seed in seeds
        ]
        return Runs(method, net, all_settings, seeds, streams)

    return make


@pytest.fixture
def double(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Everything in double precision: what two ways of training differ in after some steps is no rounding."""
    scale = View.scale
    monkeypatch.setattr(View, "scale", lambda view, moved: scale(view, moved).double())
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


Learner = RunStack | ReferenceRuns


class Difference:
    """How far two learners' runs are from each other."""

    @staticmethod
    def models(learner: Learner) -> list[torch.nn.Module]:
        return [run.model for run in learner.runs] if isinstance(learner, ReferenceRuns) else learner.models

    @staticmethod
    def kept(learner: Learner, index: int) -> list[dict[str, Tensor]]:
        if isinstance(learner, ReferenceRuns):
            return [run.kept[index].memory for run in learner.runs]
        return [memory_of(run, learner.kept[index][0]) for run in range(learner.count)]

    @staticmethod
    def method_state(learner: Learner) -> list[dict[str, Tensor]]:
        if isinstance(learner, ReferenceRuns):
            return [run.method_state or {} for run in learner.runs]
        return [memory_of(run, learner.method_state or {}) for run in range(learner.count)]

    @classmethod
    def snapshot(cls, learner: Learner) -> list[dict[str, Tensor]]:
        """Parameters and all buffers of every run, copied."""
        return [state_of(model) for model in cls.models(learner)]

    @staticmethod
    def averages(learner: Learner) -> list[dict[str, Tensor]]:
        """The same of the averages that runs answer with; their last weights where they have none."""
        if isinstance(learner, ReferenceRuns):
            return [state_of(run.model_at_test) for run in learner.runs]
        return [state_of(learner.model_at_test(run)) for run in range(len(learner.runs))]

    @classmethod
    def assert_none(cls, one: Any, two: Any, tolerance: float, tasks: Sequence[int] = ()) -> None:
        """Parameters, buffers, averages, the methods' state and what is kept of `tasks` agree, by run and name."""
        parts = [cls.snapshot, cls.averages, cls.method_state, *(partial(cls.kept, index=index) for index in tasks)]
        for part in parts:
            torch.testing.assert_close(part(one), part(two), rtol=tolerance, atol=tolerance, equal_nan=not tolerance)


@pytest.fixture
def difference() -> type[Difference]:
    return Difference


def state_of(model: torch.nn.Module) -> dict[str, Tensor]:
    return {name: tensor.detach().clone() for name, tensor in (*model.named_parameters(), *model.named_buffers())}
