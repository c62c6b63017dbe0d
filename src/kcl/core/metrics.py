"""The accuracy matrix of one run, and every number derived from it.

Accuracies are percentages, as the field prints them; forgetting and transfer are fractions, as the paper prints them.
A metric is None if an accuracy it needs was not evaluated; nothing is averaged over a part.
Tasks are counted from zero here and from one in the paper's equations.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, final

import numpy as np
import numpy.typing as npt

from kcl.errors import KclError


@final
class AccuracyMatrix:
    """values[t, i]: accuracy in percent on task i after learning task t; NaN where it was not evaluated."""

    def __init__(self, task_count: int) -> None:
        if task_count < 1:
            raise KclError(f"an accuracy matrix needs at least one task, not {task_count}")
        self.task_count = task_count
        self._values = np.full((task_count, task_count), np.nan)

    @property
    def values(self) -> npt.NDArray[np.float64]:
        """The matrix, read-only; `record` changes it."""
        view = self._values.view()
        view.flags.writeable = False
        return view

    def record(self, learned: int, task: int, percent: float) -> None:
        """Set a[learned, task], the accuracy on `task` after learning task number `learned`."""
        for index in (learned, task):
            self._require(index)
        self._values[learned, task] = _percent(percent, f"accuracy on task {task} after task {learned}")

    def _require(self, task: int) -> None:
        if not 0 <= task < self.task_count:
            raise KclError(f"task {task} does not exist: there are {self.task_count} tasks, counted from 0")

    def to_lists(self) -> list[list[float | None]]:
        """Rows of percentages for JSON, None where not evaluated."""
        return [[None if math.isnan(value) else value for value in row] for row in self._values.tolist()]

    @classmethod
    def from_lists(cls, rows: Any) -> AccuracyMatrix:
        """The inverse of `to_lists`; refuses a matrix that is not square or holds anything but percentages."""
        if not isinstance(rows, list) or not rows:
            raise KclError("an accuracy matrix must be a list of rows, at least one")
        for learned, row in enumerate(rows):
            if not isinstance(row, list) or len(row) != len(rows):
                raise KclError(f"accuracy matrix, row {learned}: expected a list of {len(rows)} accuracies")
        matrix = cls(len(rows))  # after the check: a million empty rows must not allocate a terabyte
        matrix._values[:] = [
            [math.nan if percent is None else _listed(percent, learned, task) for task, percent in enumerate(row)]
            for learned, row in enumerate(rows)
        ]
        return matrix

    def average_accuracy_after(self, learned: int) -> float | None:
        """Average accuracy over the tasks seen so far, in percent: A_t = 1/t Σ_{i≤t} a_{t,i} (Eq. 12)."""
        self._require(learned)
        return _mean(self._values[learned, : learned + 1])

    @property
    def average_accuracy(self) -> float | None:
        """Average accuracy at the end of the run, in percent: A_T (Eq. 12)."""
        return self.average_accuracy_after(self.task_count - 1)

    @property
    def average_incremental_accuracy(self) -> float | None:
        """Average accuracy over the tasks seen so far, averaged over the stream, in percent: 1/T Σ_t A_t.

        Rebuffi, Kolesnikov, Sperl and Lampert, "iCaRL: incremental classifier and representation learning", 2017, where
        every task has as many test samples; not in the paper.
        """
        averages = [self.average_accuracy_after(learned) for learned in range(self.task_count)]
        return None if None in averages else _mean(np.array(averages, dtype=np.float64))

    @property
    def forgetting(self) -> float | None:
        """Average forgetting, a fraction: F = 1/(T−1) Σ_{i<T} max_{t<T} (a_{t,i} − a_{T,i}) (Eq. 13).

        The maximum starts at t = i, when task i has been learned; the paper's starts at 1. Accuracy on a task not yet
        learned is chance, or undefined for kernel continual learning, so this is the meaning of the definition.
        It is negative if old tasks improved, and None for one task.
        """
        return self.forgetting_after(self.task_count - 1)

    @property
    def forgetting_with_last(self) -> float | None:
        """The same with the last accuracies among those whose maximum is taken: 1/(T−1) Σ_{i<T} max_{t≤T} (a_{t,i} −
        a_{T,i}). It is never negative: a task that improved counts as not forgotten, and makes up for no other. So the
        program of the paper's authors counts it.
        """
        last = self.task_count - 1
        return self._forgetting(last, last + 1)

    def forgetting_after(self, learned: int) -> float | None:
        """Average forgetting so far, a fraction: F as if task number `learned` were the last."""
        self._require(learned)
        return self._forgetting(learned, learned)

    def _forgetting(self, learned: int, end: int) -> float | None:
        # np.max, unlike np.nanmax, propagates a missing accuracy.
        best = np.array([np.max(self._values[task:end, task]) for task in range(learned)])
        return _fraction(best - self._values[learned, :learned])

    @property
    def learning_accuracy(self) -> float | None:
        """Accuracy on each task just after learning it, in percent: 1/T Σ_i a_{i,i} (not in the paper)."""
        return _mean(self._values.diagonal())

    @property
    def backward_transfer(self) -> float | None:
        """Effect of later tasks on earlier ones, a fraction: 1/(T−1) Σ_{i<T} (a_{T,i} − a_{i,i}); None for one task.

        Lopez-Paz and Ranzato, "Gradient episodic memory for continual learning", 2017, Eq. 3; not in the paper.
        """
        last = self.task_count - 1
        return _fraction(self._values[last, :last] - self._values.diagonal()[:last])

    def forward_transfer(self, initial: Sequence[float | None] | None) -> float | None:
        """Effect of earlier tasks on later ones, a fraction: 1/(T−1) Σ_{i>1} (a_{i−1,i} − b_i).

        b_i is the accuracy of the untrained network on task i, in percent (`initial`). Lopez-Paz and Ranzato, 2017,
        Eq. 4; not in the paper. None for one task, and for kernel continual learning, which has no classifier for a
        task whose coreset it has not seen.
        """
        if initial is None:
            return None
        if len(initial) != self.task_count:
            raise KclError(f"{len(initial)} initial accuracies for {self.task_count} tasks")
        before = [
            math.nan if percent is None else _percent(percent, f"initial accuracy on task {task}")
            for task, percent in enumerate(initial)
        ]
        return _fraction(self._values.diagonal(1) - np.array(before[1:]))

    def summary(self, initial: Sequence[float | None] | None = None) -> dict[str, float | None]:
        """Every metric under the name it has in a result record."""
        return {name: metric(self, initial) for name, metric in METRICS.items()}


Metric = Callable[[AccuracyMatrix, Sequence[float | None] | None], float | None]
METRICS: dict[str, Metric] = {
    "average_accuracy": lambda matrix, _: matrix.average_accuracy,
    "average_incremental_accuracy": lambda matrix, _: matrix.average_incremental_accuracy,
    "forgetting": lambda matrix, _: matrix.forgetting,
    "forgetting_with_last": lambda matrix, _: matrix.forgetting_with_last,
    "learning_accuracy": lambda matrix, _: matrix.learning_accuracy,
    "backward_transfer": lambda matrix, _: matrix.backward_transfer,
    "forward_transfer": lambda matrix, initial: matrix.forward_transfer(initial),
}
"""Every metric of a run, from its accuracy matrix and the accuracies of the untrained network. Those whose names end in
"accuracy" are in percent, the others fractions. A metric added here is in every result line from then on.
"""


def _percent(value: Any, what: str) -> float:
    # bool is an int in Python; NaN fails the comparison, so a diverged evaluation is not mistaken for a missing one.
    number = isinstance(value, int | float | np.integer | np.floating) and not isinstance(value, bool)
    if not number or not 0 <= value <= 100:
        raise KclError(f"{what} is {str(value)[:40]!r}; expected a percentage from 0 to 100")
    return float(value)


def _listed(value: Any, learned: int, task: int) -> float:
    """As `_percent`, with a fast path for the usual case: results hold many thousands of them."""
    if type(value) is float and 0.0 <= value <= 100.0:
        return value
    return _percent(value, f"accuracy on task {task} after task {learned}")


def _mean(percents: npt.NDArray[np.float64]) -> float | None:
    """The mean, or None if there is nothing to average or any entry is missing."""
    if percents.size == 0 or bool(np.isnan(percents).any()):
        return None
    return float(percents.mean())


def _fraction(percents: npt.NDArray[np.float64]) -> float | None:
    mean = _mean(percents)
    return None if mean is None else mean / 100
