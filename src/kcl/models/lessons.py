"""Lessons of a continual model: samples of a new task, or more samples and new classes of an old one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from kcl.benchmarks.task import Task
from kcl.core.shapes import Float, Int, Shaped
from kcl.methods.coreset import check_size
from kcl.methods.kcl import KernelContinualLearning
from kcl.methods.kernel_model import KernelModel
from kcl.methods.method import Learnable
from kcl.models.inputs import Label

LEAST_HELD_OUT = 10
"""Fewer held-out samples would not tell anything."""
MOST_SEEN = 10**9 - 1
"""The largest number of samples that NumPy draws from."""


@dataclass(frozen=True)
class LearnedTask:
    """A learned task, without its coreset."""

    lesson: int
    """The last lesson on this task. It numbers the task's random draws."""
    labels: tuple[Label, ...]
    """The classes, in the order of the scores."""
    seen: tuple[int, ...]
    """Samples of each class seen so far."""


Tasks = dict[str, LearnedTask]
"""By name."""


def places_among_all(tasks: Mapping[str, LearnedTask]) -> dict[str, list[int]]:
    """For every task, the place of each of its classes among all classes, each of which has one place."""
    order: dict[Label, int] = {}
    return {name: [order.setdefault(label, len(order)) for label in task.labels] for name, task in tasks.items()}


def samples_by_class(targets: Tensor, classes: int) -> list[int]:
    """How many samples have each class. If targets are numbers, every sample has all of them."""
    if targets.ndim == 2:
        return [len(targets)] * classes
    counts: list[int] = torch.bincount(targets, minlength=classes).tolist()
    return counts


class Samples(NamedTuple):
    """Samples of a task, as stored."""

    task: str
    inputs: Shaped[Tensor, "n ..."]
    targets: Int[Tensor, " n"] | Float[Tensor, "n c"]
    """Positions among the task's classes, or numbers."""
    weights: Float[Tensor, " n"] | None = None


@dataclass(frozen=True)
class Lesson(Task):
    """A task whose coreset and training samples were chosen beforehand."""

    coreset: tuple[int, ...] = ()
    learned: tuple[int, ...] = ()


class LessonLearning(KernelContinualLearning):
    """Kernel continual learning that uses the coreset of a lesson instead of drawing one."""

    def check(self, task: Task) -> None:
        task.check()

    def begin_task(self, model: KernelModel, task: Task, rng: np.random.Generator) -> Learnable:
        if not isinstance(task, Lesson):
            return super().begin_task(model, task, rng)
        model.head.restart(self.settings.warm_start)
        return Learnable(np.array(task.learned), self.keep(model, task, np.array(task.coreset)))


def choose_coreset(
    labels: np.ndarray, old_size: int, seen: Sequence[int], size_per_class: int, rng: np.random.Generator
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Positions of the coreset and positions of the samples to learn from.

    The first `old_size` samples are the task's old coreset, drawn from `seen[c]` samples of class c; the rest are new.
    The new coreset of a class is a uniform draw from all its samples, old and new: the number taken from the old
    coreset follows a draw without replacement (hypergeometric). At most half of a class's new samples (rounded up) are
    kept, so that some remain to learn from. If none remain, the new samples in the coreset are learned from as well;
    old ones never are.
    """
    chosen: list[np.ndarray] = []
    for value, before in enumerate(seen):
        positions = np.flatnonzero(labels == value)
        old, new = (rng.permutation(positions[part]) for part in (positions < old_size, positions >= old_size))
        most_new = -(-len(new) // 2)
        size = min(size_per_class, len(old) + most_new)
        before = min(before, MOST_SEEN)
        from_old = int(rng.hypergeometric(before, len(new), size)) if before and len(new) else min(size, len(old))
        from_old = min(max(from_old, size - most_new), len(old))
        chosen += [old[:from_old], new[: size - from_old]]
    coreset = np.concatenate(chosen)
    check_size(len(coreset), len(seen))
    rest = np.setdiff1d(np.arange(old_size, len(labels)), coreset)
    learned = rest if len(rest) else np.arange(old_size, len(labels))
    return tuple(coreset.tolist()), tuple(learned.tolist())


def hold_out(samples: Samples, share: float, rng: np.random.Generator) -> tuple[Samples, Samples | None]:
    """Split the samples into those to learn from and those that only test (none if there are too few)."""
    name, x, y, weights = samples
    count = round(share * len(y))
    if count < LEAST_HELD_OUT:
        return samples, None
    order = rng.permutation(len(y))
    # Every class keeps its first sample for training: a class that is not learned cannot be tested either.
    _, first = np.unique(y.numpy()[order], return_index=True)
    held = np.delete(order, first)[:count]
    if len(held) == 0:
        return samples, None
    rest = np.delete(np.arange(len(y)), held)
    return Samples(name, x[rest], y[rest], None if weights is None else weights[rest]), Samples(name, x[held], y[held])
