"""How far runs have come through their streams, and what was measured: the part of a checkpoint that is not tensors."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from typing import Any

from kcl.core.metrics import AccuracyMatrix
from kcl.errors import KclError


class RunHistory:
    """The history of runs trained together. `learned` and `tested` count training tasks; they differ by one between
    the last step of a task and the end of its test.
    """

    def __init__(self, runs: int, tasks: int) -> None:
        self.matrices: list[AccuracyMatrix] = [AccuracyMatrix(tasks) for _ in range(runs)]
        self.initial: list[list[float]] = []
        """Accuracies of the untrained runs on the tasks measured so far."""
        self.learning: list[float] = []
        """Seconds spent learning each task, including the one being learned."""
        self.learned = self.tested = self.resumed = 0
        self._start, self._seconds_before = time.perf_counter(), 0.0

    @property
    def seconds(self) -> float:
        """Total time, without pauses between a checkpoint and its resumption."""
        return self._seconds_before + time.perf_counter() - self._start

    def average(self, index: int, alive: Sequence[int]) -> float:
        """Average accuracy over the tasks up to `index` and the runs that are alive."""
        return sum(self.matrices[run].average_accuracy_after(index) or 0.0 for run in alive) / len(alive)

    def to_dict(self, learning: float | None = None) -> dict[str, Any]:
        """`learning`: seconds spent so far on a task that is still being learned."""
        return {
            "matrices": [matrix.to_lists() for matrix in self.matrices],
            "initial": self.initial,
            "learning": [*self.learning, *([] if learning is None else [learning])],
            "learned": self.learned,
            "tested": self.tested,
            "resumed": self.resumed,
            "seconds": self.seconds,
        }

    def restore(self, saved: Any) -> None:
        """The inverse of `to_dict`. Inconsistent values are refused."""
        try:
            matrices = [AccuracyMatrix.from_lists(rows) for rows in saved["matrices"]]
            count = self.matrices[0].task_count
            initial, learning = saved["initial"], saved["learning"]
            learned, tested, resumed = (saved[name] for name in ("learned", "tested", "resumed"))
            valid = (
                [matrix.task_count for matrix in matrices] == [count] * len(self.matrices)
                and len(initial) <= count
                and all(len(row) == len(matrices) and all(0.0 <= value <= 100.0 for value in row) for row in initial)
                and all(type(number) is int for number in (learned, tested, resumed))
                and 0 <= learned - tested <= 1
                and 0 <= tested <= count
                and resumed >= 0
                and len(learning) - learned in (0, 1)
                and all(_is_duration(seconds) for seconds in (*learning, saved["seconds"]))
            )
        except (KeyError, TypeError, AttributeError):
            valid = False
        if not valid:
            raise KclError("the checkpoint does not fit the run: its record of progress is missing or inconsistent")
        self.matrices, self.initial, self.learning = matrices, initial, learning
        self.learned, self.tested, self.resumed = learned, tested, resumed + 1
        self._seconds_before = saved["seconds"]


def _is_duration(value: Any) -> bool:
    return type(value) in (int, float) and math.isfinite(value) and value >= 0.0
