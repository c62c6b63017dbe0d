"""Small runs for either engine, on made-up images."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from kcl.benchmarks.mnist import PermutedPixels
from kcl.benchmarks.task import Stream, Task, View
from kcl.data.dataset import Dataset
from kcl.methods.method import Method
from kcl.methods.recipes import METHODS
from kcl.nets.backbone import Backbone
from kcl.nets.mlp import MLP
from kcl.nets.resnet import ResNet18
from kcl.settings import Settings
from kcl.training.learner import SeparateRuns
from kcl.training.run import Run
from kcl.training.stacked import StackedRuns

SMALL = Settings(bases=32, width=16, coreset_size_per_class=4, batch_size=10, lr_floor=0.0)
# Every number that may differ between stacked runs does.
NUMBERS: list[dict[str, float]] = [
    {"lr": 0.05, "momentum": 0.8, "tau": 0.01, "dropout": 0.2, "ridge_strength": 0.1, "lr_decay": 0.8},
    {"lr": 0.1, "momentum": 0.5, "tau": 0.1, "dropout": 0.4, "ridge_strength": 0.5, "lr_floor": 0.09},
    {"lr": 0.03, "momentum": 0.0, "tau": 0.0, "dropout": 0.1, "ridge_strength": 1.0, "lr_decay": 1.0},
]
GAMMAS = [0.5, 1.0, 0.2]
SHAPES = {"mlp": (1, 4, 4), "resnet": (3, 6, 6)}
# BatchNorm over a few samples is chaotic: small steps and little dropout keep two roundings of a run together.
CALMER = {"mlp": {}, "resnet": {"lr": 0.1, "lr_floor": 0.1, "dropout": 0.1}}


def _images(samples: int, shape: Sequence[int], seed: int) -> tuple[Tensor, Tensor]:
    """Bytes around one centre for each of three classes, the classes in turn."""
    labels = torch.arange(samples) % 3
    centres = torch.rand(3, *shape, generator=torch.Generator().manual_seed(0))
    noise = torch.rand(samples, *shape, generator=torch.Generator().manual_seed(seed))
    return (127 * centres[labels] + 128 * noise).to(torch.uint8), labels


@pytest.fixture
def make_dataset() -> Callable[..., Dataset]:
    """Three classes of small images; 40 of them to test on."""

    def make(samples: int = 60, shape: Sequence[int] = SHAPES["mlp"]) -> Dataset:
        return Dataset("made up", *_images(samples, shape, 1), *_images(40, shape, 2), ("0", "1", "2"))

    return make


def _backbone(net: str, settings: Settings) -> Backbone:
    if net == "mlp":
        return MLP(SHAPES[net], settings.width, settings.layers, settings.dropout)
    return ResNet18((4, 8), (1, 2), stem=3, dropout=settings.dropout)


@dataclass(frozen=True)
class Runs:
    """Some runs of one method, for either engine."""

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
        settings = [own.replace(**changes) if run == other else own for other, own in enumerate(self.settings)]
        return replace(self, settings=settings)

    def tasks(self, index: int) -> list[Task]:
        return [stream[index] for stream in self.streams]

    def methods(self) -> list[Method]:
        pairs = zip(self.settings, self.streams, strict=True)
        return [METHODS[self.method](settings, len(stream.class_labels)) for settings, stream in pairs]

    def backbones(self) -> list[Callable[[], Backbone]]:
        return [partial(_backbone, self.net, settings) for settings in self.settings]

    def separate(self) -> SeparateRuns:
        parts = zip(self.methods(), self.backbones(), self.seeds, strict=True)
        return SeparateRuns([Run(method, backbone, seed) for method, backbone, seed in parts])

    def stacked(self, compiled: bool = False) -> StackedRuns:
        return StackedRuns(self.methods(), self.backbones(), self.seeds, "cpu", compiled)


@pytest.fixture
def make_runs(make_dataset: Callable[..., Dataset]) -> Callable[..., Runs]:
    """Three runs with different seeds and different numbers; further keywords are settings of all of them."""

    def make(method: str = "kcl", net: str = "mlp", samples: int = 60, tasks: int = 2, **settings: Any) -> Runs:
        dataset = make_dataset(samples, SHAPES[net])
        seeds = [3, 11, 2**40 + 1]
        own = []
        for numbers, gamma in zip(NUMBERS, GAMMAS, strict=True):
            calmer = {name: value * CALMER[net].get(name, 1.0) for name, value in numbers.items()}
            own.append(SMALL.replace(**{**calmer, "rbf_gamma": gamma, "laplacian_gamma": gamma, **settings}))
        return Runs(method, net, own, seeds, [PermutedPixels(dataset, tasks, seed) for seed in seeds])

    return make


@pytest.fixture
def double(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Everything in double precision: what two engines still differ in after some steps is no rounding."""
    scale = View.scale
    monkeypatch.setattr(View, "scale", lambda view, moved: scale(view, moved).double())
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


class Difference:
    """How far two learners' runs are from each other."""

    @staticmethod
    def models(learner: SeparateRuns | StackedRuns) -> list[torch.nn.Module]:
        return [run.model for run in learner.runs] if isinstance(learner, SeparateRuns) else learner.models

    @staticmethod
    def kept(learner: SeparateRuns | StackedRuns, index: int) -> list[dict[str, Tensor]]:
        if isinstance(learner, SeparateRuns):
            return [run.kept[index].memory for run in learner.runs]
        memory, _ = learner.kept[index]
        return [{name: tensor[run] for name, tensor in memory.items()} for run in range(learner.count)]

    @classmethod
    def snapshot(cls, learner: SeparateRuns | StackedRuns) -> list[dict[str, Tensor]]:
        """Parameters and all buffers of every run, copied."""
        return [
            {name: tensor.detach().clone() for name, tensor in (*model.named_parameters(), *model.named_buffers())}
            for model in cls.models(learner)
        ]

    @classmethod
    def assert_none(cls, one: Any, two: Any, tolerance: float, tasks: Sequence[int] = ()) -> None:
        """Parameters, buffers and what is kept of `tasks` agree, run by run and name by name."""
        for mine, others in zip(cls.snapshot(one), cls.snapshot(two), strict=True):
            torch.testing.assert_close(mine, others, rtol=tolerance, atol=tolerance)
        for index in tasks:
            for mine, others in zip(cls.kept(one, index), cls.kept(two, index), strict=True):
                torch.testing.assert_close(mine, others, rtol=tolerance, atol=tolerance)


@pytest.fixture
def difference() -> type[Difference]:
    return Difference
