"""What a model that keeps learning is taught: samples of a new task, or more samples and new classes of an old one."""

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
    """A task that says itself which of its training samples are kept and which are learned from."""

    coreset: tuple[int, ...] = ()
    learned: tuple[int, ...] = ()


class LessonLearning(KernelContinualLearning):
    """Kernel continual learning from lessons."""

    def check(self, task: Task) -> None:
        task.check()

    def begin_task(self, model: KernelModel, task: Task, rng: np.random.Generator) -> Learnable:
        if not isinstance(task, Lesson):
            return super().begin_task(model, task, rng)
        model.head.restart(self.settings.warm_start)
        return Learnable(np.array(task.learned), self.keep(task, np.array(task.coreset)))


def choose_coreset(
    labels: np.ndarray, kept: int, seen: Sequence[int], size_per_class: int, rng: np.random.Generator
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Positions to keep and positions to learn from.

    The first `kept` samples are the task's coreset so far, drawn from `seen[c]` samples of class c; the others are new.
    The new coreset of a class is a uniform draw from all its samples, old and new: as many come from the old coreset as
    a draw without replacement would take (hypergeometric). At most half of a class's new samples (rounded up) are kept,
    so that some remain to learn from; where none do, what is kept is learned from as well. Old samples are never.
    """
    chosen: list[np.ndarray] = []
    for value, before in enumerate(seen):
        places = np.flatnonzero(labels == value)
        old, new = rng.permutation(places[places < kept]), rng.permutation(places[places >= kept])
        most = -(-len(new) // 2)
        room = min(size_per_class, len(old) + most)
        from_old = int(rng.hypergeometric(before, len(new), room)) if before and len(new) else min(room, len(old))
        from_old = min(max(from_old, room - most), len(old))
        chosen += [old[:from_old], new[: room - from_old]]
    coreset = np.concatenate(chosen)
    if len(coreset) > LARGEST:
        raise KclError(
            f"the task's coreset would have {len(coreset)} samples; at most {LARGEST} are possible: "
            "choose a smaller coreset_size_per_class"
        )
    rest = np.setdiff1d(np.arange(kept, len(labels)), coreset)
    learned = rest if len(rest) else np.arange(kept, len(labels))
    return tuple(coreset.tolist()), tuple(learned.tolist())
