"""Small runs of either engine, on made-up images."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from kcl.benchmarks.mnist import PermutedPixels
from kcl.benchmarks.task import Stream
from kcl.data.dataset import Dataset
from kcl.methods.recipes import METHODS
from kcl.nets.backbone import Backbone
from kcl.nets.mlp import MLP
from kcl.nets.resnet import ResNet18
from kcl.settings import Settings
from kcl.training.learner import SeparateRuns
from kcl.training.run import Run
from kcl.training.stacked import StackedRuns

SMALL = Settings(bases=32, width=16, coreset_size_per_class=4, batch_size=10)
# Every number that may differ between stacked runs does.
NUMBERS: list[dict[str, float]] = [
    {"lr": 0.05, "momentum": 0.8, "tau": 0.01, "dropout": 0.2, "ridge_strength": 0.1, "lr_decay": 0.8},
    {"lr": 0.1, "momentum": 0.5, "tau": 0.1, "dropout": 0.4, "ridge_strength": 0.5, "lr_floor": 0.09},
    {"lr": 0.03, "momentum": 0.0, "tau": 0.0, "dropout": 0.1, "ridge_strength": 1.0, "lr_decay": 1.0},
]
GAMMAS = [0.5, 1.0, 0.2]
SHAPES = {"mlp": (1, 4, 4), "resnet": (3, 8, 8)}


def images(samples: int, shape: Sequence[int], classes: int = 3, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Bytes around one centre per class, classes in turn."""
    random = torch.Generator().manual_seed(seed)
    labels = torch.arange(samples) % classes
    centres = torch.rand(classes, *shape, generator=random)
    noise = torch.rand(samples, *shape, generator=random)
    return (127 * centres[labels] + 128 * noise).to(torch.uint8), labels


def small_dataset(samples: int, shape: Sequence[int]) -> Dataset:
    train, test = images(samples, shape), images(40, shape, seed=0)
    return Dataset("made up", *train, *test, ("0", "1", "2"))


def _backbone(net: str, settings: Settings) -> Backbone:
    if net == "mlp":
        return MLP(SHAPES[net], settings.width, settings.layers, settings.dropout)
    return ResNet18((4, 4, 4, 8, 8), (1, 1, 2, 2, 1), stem=3, dropout=settings.dropout)


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

    def tasks(self, index: int) -> list[Any]:
        return [stream[index] for stream in self.streams]

    def methods(self) -> list[Any]:
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
def make_runs() -> Callable[..., Runs]:
    """Runs with different seeds and different numbers; further keywords are settings of all of them."""

    def make(method: str = "kcl", net: str = "mlp", samples: int = 60, tasks: int = 2, **settings: Any) -> Runs:
        dataset = small_dataset(samples, SHAPES[net])
        seeds = [3, 11, 2**40 + 1]
        own = [
            SMALL.replace(**{**numbers, "rbf_gamma": gamma, "laplacian_gamma": gamma, **settings})
            for numbers, gamma in zip(NUMBERS, GAMMAS, strict=True)
        ]
        return Runs(method, net, own, seeds, [PermutedPixels(dataset, tasks, seed) for seed in seeds])

    return make
