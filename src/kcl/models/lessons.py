"""Lessons of a continual model: samples of a new task, or more samples and new classes of an old one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from kcl.benchmarks.task import Task
from kcl.errors import KclError
from kcl.methods.coreset import LARGEST
from kcl.methods.kcl import KernelContinualLearning, KernelModel
from kcl.methods.method import Learnable


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
        return Learnable(np.array(task.learned), self.keep(task, np.array(task.coreset)))


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
        from_old = int(rng.hypergeometric(before, len(new), size)) if before and len(new) else min(size, len(old))
        from_old = min(max(from_old, size - most_new), len(old))
        chosen += [old[:from_old], new[: size - from_old]]
    coreset = np.concatenate(chosen)
    if len(coreset) > LARGEST:
        raise KclError(
            f"the task's coreset would have {len(coreset)} samples, more than the limit of {LARGEST}: "
            "choose a smaller coreset_size_per_class"
        )
    rest = np.setdiff1d(np.arange(old_size, len(labels)), coreset)
    learned = rest if len(rest) else np.arange(old_size, len(labels))
    return tuple(coreset.tolist()), tuple(learned.tolist())
