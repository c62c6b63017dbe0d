"""How far runs have come through their streams, and what was measured on the way: the part of a checkpoint that is no
tensor.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from typing import Any

from kcl.core.metrics import AccuracyMatrix
from kcl.errors import KclError


class Ledger:
    """`learned` and `tested` count lessons: after the last step of one and before its test they differ by one."""

    def __init__(self, runs: int, tasks: int) -> None:
        self.matrices: list[AccuracyMatrix] = [AccuracyMatrix(tasks) for _ in range(runs)]
        self.initial: list[list[float]] = []
        """Accuracies of the untrained runs, task by task; those measured so far."""
        self.learning: list[float] = []
        """Seconds that learning took: of the lessons learned, and of the one being learned."""
        self.learned = self.tested = self.resumed = 0
        self._begun, self._before = time.perf_counter(), 0.0

    @property
    def seconds(self) -> float:
        """Since the beginning, without the time between a save and its resumption."""
        return self._before + time.perf_counter() - self._begun

    def average(self, index: int, alive: Sequence[int]) -> float:
        """Average accuracy over the tasks up to `index` and the runs that are alive."""
        return sum(self.matrices[run].average_accuracy_after(index) or 0.0 for run in alive) / len(alive)

    def to_dict(self, learning: float | None = None) -> dict[str, Any]:
        """`learning`: seconds spent so far on a lesson that is not learned yet."""
        return {
            "matrices": [matrix.to_lists() for matrix in self.matrices],
            "initial": self.initial,
            "learning": [*self.learning, *([] if learning is None else [learning])],
            "learned": self.learned,
            "tested": self.tested,
            "resumed": self.resumed,
            "seconds": self.seconds,
        }

    def restore(self, given: Any) -> None:
        """The inverse of `to_dict`; what cannot be so is refused."""
        try:
            matrices = [AccuracyMatrix.from_lists(rows) for rows in given["matrices"]]
            count = self.matrices[0].task_count
            initial, learning = given["initial"], given["learning"]
            learned, tested, resumed = (given[name] for name in ("learned", "tested", "resumed"))
            sound = (
                [matrix.task_count for matrix in matrices] == [count] * len(self.matrices)
                and len(initial) <= count
                and all(len(row) == len(matrices) and all(0.0 <= value <= 100.0 for value in row) for row in initial)
                and all(type(number) is int for number in (learned, tested, resumed))
                and 0 <= learned - tested <= 1
                and 0 <= tested <= count
                and resumed >= 0
                and len(learning) - learned in (0, 1)
                and all(_is_time(seconds) for seconds in (*learning, given["seconds"]))
            )
        except (KeyError, TypeError, AttributeError):
            sound = False
        if not sound:
            raise KclError("the checkpoint does not fit the run: what it says about its progress cannot be so")
        self.matrices, self.initial, self.learning = matrices, initial, learning
        self.learned, self.tested, self.resumed = learned, tested, resumed + 1
        self._before = given["seconds"]


def _is_time(value: Any) -> bool:
    return type(value) in (int, float) and math.isfinite(value) and value >= 0.0
