"""How much a training computes, counted in images that pass the backbone: the same on every machine.

A step passes its batch and what a method passes beside it, the coreset or what is recalled, in all views; and as often
as there are updates per batch. What a pass costs differs between backbones, not between methods: products of matrices
outside of it (the ridge solve, Muon, the average of the weights) are not counted.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from kcl.core.settings import Settings
from kcl.methods.agem import AveragedGEM
from kcl.methods.episodic import EpisodicSettings
from kcl.methods.ewc import EwcSettings
from kcl.methods.kcl_settings import KclSettings
from kcl.methods.method import Method
from kcl.methods.recipes import RESNETS, find_method
from kcl.methods.views import rotations


class Shape(NamedTuple):
    """A task as far as it decides the count."""

    samples: int
    """To train on, the coreset among them."""
    ways: int


class TrainingCompute(NamedTuple):
    """Of one run over its whole stream."""

    samples: int
    """Training samples of the stream, the coresets among them."""
    updates: int
    images: int
    """Passed through the backbone while training, each copy of a sample counted."""

    @property
    def images_per_sample(self) -> float:
        return self.images / self.samples

    @property
    def images_per_update(self) -> float:
        return self.images / self.updates


def training_compute(method: str, settings: Settings, tasks: Sequence[Shape]) -> TrainingCompute:
    """What a method's training on these tasks takes, no class having fewer samples than its coreset."""
    kind, samples = find_method(method), sum(task.samples for task in tasks)
    ways = sum(task.ways for task in tasks)
    if kind.joint:
        tasks = [Shape(samples, 0)]
    updates = images = fisher = 0
    for index, task in enumerate(tasks):
        coreset = settings.coreset_size_per_class * task.ways if isinstance(settings, KclSettings) else 0
        learned = task.samples - coreset
        batches = _batches(learned, settings)
        beside = coreset or _recalled(kind, settings, ways, index)
        updates += batches
        images += learned + batches * beside
        if isinstance(settings, EwcSettings) and settings.ewc_fisher == "classic":
            fisher += min(settings.ewc_fisher_samples, task.samples)
    often = settings.epochs * settings.updates_per_batch
    return TrainingCompute(samples, often * updates, rotations(settings) * (often * images + fisher))


def _batches(samples: int, settings: Settings) -> int:
    """Of an epoch; where there is BatchNorm, a last sample that would be alone joins the batch before it."""
    whole, left = divmod(samples, settings.batch_size)
    return whole + (left > (1 if settings.backbone in RESNETS else 0))


def _recalled(kind: type[Method], settings: Settings, ways: int, task: int) -> int:
    """Samples recalled per step; A-GEM has nothing to recall in the first task. `ways`: of all tasks together."""
    if not isinstance(settings, EpisodicSettings) or (kind is AveragedGEM and task == 0):
        return 0
    return min(settings.recalled_per_step, settings.memory_per_class * ways)
