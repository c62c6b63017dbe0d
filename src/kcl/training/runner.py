"""One run over a whole stream: tasks in order, evaluation after each, and the record of it."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple

from kcl.benchmarks.task import Stream
from kcl.metrics import AccuracyMatrix
from kcl.training.run import Run, Step


class Progress(NamedTuple):
    """Where a run stands: at a step of the task being learned, or (step None) at the end of that task."""

    task: int
    tasks: int
    step: Step | None
    average_accuracy: float | None


class Outcome(NamedTuple):
    """What a finished run leaves: what was measured, and how long it took."""

    matrix: AccuracyMatrix
    initial_accuracy: list[float] | None
    seconds: float
    diverged: bool
    memory: dict[str, int]


def run_stream(run: Run, stream: Stream, on_progress: Callable[[Progress], None] | None = None) -> Outcome:
    """Learn every task in order; after each, test every task seen so far, and the next one where that is possible."""
    begun, count = time.perf_counter(), len(stream)
    matrix, average = AccuracyMatrix(count), None
    report = on_progress or (lambda _: None)
    unseen = run.method.answers_unseen
    initial = [run.accuracy(task) for task in stream] if unseen else None
    for index in range(count):
        run.learn(stream[index], lambda step, i=index, a=average: report(Progress(i, count, step, a)))
        if run.diverged:
            break
        for other in range(min(index + 1 + unseen, count)):
            matrix.record(index, other, run.accuracy(stream[other]))
        average = matrix.average_accuracy_after(index)
        report(Progress(index, count, None, average))
    return Outcome(matrix, initial, time.perf_counter() - begun, run.diverged, run.memory_use())
