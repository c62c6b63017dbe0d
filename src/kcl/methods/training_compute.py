"""Training compute, counted in images passed through the backbone: the same on every machine.

Each update passes the batch and, depending on the method, the coreset or replayed samples, in all views. The cost of a
pass depends on the backbone, not on the method. Matrix products elsewhere (the ridge solve, Muon, the average of the
weights) are not counted.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from kcl.core.settings import Settings
from kcl.methods.agem import AveragedGEM
from kcl.methods.episodic import EpisodicMethod, EpisodicSettings
from kcl.methods.ewc import EwcSettings
from kcl.methods.kcl_settings import KclSettings
from kcl.methods.method import Method
from kcl.methods.recipes import RESNETS, find_method
from kcl.methods.views import rotations


class Shape(NamedTuple):
    """The sizes of a task that determine the count."""

    samples: int
    """Training samples, including the coreset."""
    ways: int


class TrainingCompute(NamedTuple):
    """The count for one run over its whole stream."""

    samples: int
    """Training samples of the stream, including coresets."""
    updates: int
    images: int
    """Images passed through the backbone in training, counting every copy of a sample."""

    @property
    def images_per_sample(self) -> float:
        return self.images / self.samples

    @property
    def images_per_update(self) -> float:
        return self.images / max(1, self.updates)  # a method without steps has no updates


def training_compute(method: str, settings: Settings, tasks: Sequence[Shape]) -> TrainingCompute:
    """The compute of training a method on these tasks. Assumes that no class has fewer samples than its coreset."""
    kind, samples = find_method(method), sum(task.samples for task in tasks)
    ways = sum(task.ways for task in tasks)
    if not kind.trains:
        return TrainingCompute(samples, 0, samples)
    if kind.joint:
        tasks = [Shape(samples, 0)]
    updates = images = seen_once = 0
    for index, task in enumerate(tasks):
        coreset, added = 0, _replayed(kind, settings, ways, index)
        if isinstance(settings, KclSettings):
            coreset = settings.coreset_size_per_class * task.ways
            added = coreset if settings.network_loss == "ridge" else 0
            seen_once += task.samples if settings.matched_targets else 0
        learned = task.samples - coreset
        batches = _batches(learned, settings)
        updates += batches
        images += learned + batches * added
        if isinstance(settings, EwcSettings) and settings.ewc_fisher == "classic":
            seen_once += min(settings.ewc_fisher_samples, task.samples)
    passes = settings.epochs * settings.updates_per_batch
    return TrainingCompute(samples, passes * updates, rotations(settings) * (passes * images + seen_once))


def _batches(samples: int, settings: Settings) -> int:
    """Batches per epoch. With BatchNorm, a single last sample joins the previous batch."""
    whole, left = divmod(samples, settings.batch_size)
    return whole + (left > (1 if settings.backbone in RESNETS else 0))


def _replayed(kind: type[Method], settings: Settings, ways: int, task: int) -> int:
    """Samples replayed per step; A-GEM replays nothing in the first task. `ways`: of all tasks together."""
    if not isinstance(settings, EpisodicSettings) or (kind is AveragedGEM and task == 0):
        return 0
    draws = kind.draws if issubclass(kind, EpisodicMethod) else 1
    return draws * min(settings.recalled_per_step, settings.memory_per_class * ways)
