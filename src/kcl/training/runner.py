"""Runs over their whole streams: tasks in order, evaluation after each, and what was measured."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

from kcl.benchmarks.joint import JointTask, join
from kcl.benchmarks.task import Stream
from kcl.metrics import AccuracyMatrix
from kcl.training.learner import Learner
from kcl.training.run import Step
from kcl.training.standing import Standing, standings_after


class Progress(NamedTuple):
    """Where the runs stand: at a step of the task being learned, or (step None) at the end of that task."""

    task: int
    tasks: int
    step: Step | None
    average_accuracy: float | None
    """After the last task, averaged over the runs that have not diverged."""
    runs: tuple[Standing, ...] = ()
    """Every run after the last task, and before the first with nothing but its seed."""


class Outcome(NamedTuple):
    """What a finished run leaves: what was measured, and how long all the runs trained together took."""

    matrix: AccuracyMatrix
    initial_accuracy: list[float] | None
    seconds: float
    learning_seconds: list[float]
    """What learning each task took, without the evaluation."""
    diverged: bool
    memory: dict[str, int]


OnProgress = Callable[[Progress], None]


def run_streams(learner: Learner, streams: Sequence[Stream], on_progress: OnProgress = lambda _: None) -> list[Outcome]:
    """Learn every task in order; after each, test every task seen so far, and the next one where that is possible.

    Runs that learn all tasks at once are tested on all of them after that: the last row of the matrix is theirs.
    """
    begun, count, runs = time.perf_counter(), len(streams[0]), range(len(streams))
    matrices: list[AccuracyMatrix] = [AccuracyMatrix(count) for _ in runs]
    learning: list[float] = []
    unseen, average = learner.answers_unseen, None
    standings = standings_after(None, learner.seeds, matrices)
    initial = [learner.accuracy([stream[index] for stream in streams]) for index in range(count)] if unseen else []
    lessons: list[Stream | list[JointTask]] = [
        [join(list(stream), len(stream.class_labels))] if learner.joint else stream for stream in streams
    ]
    for lesson in range(len(lessons[0])):
        index = count - len(lessons[0]) + lesson

        def report(
            step: Step,
            lesson: int = lesson,
            average: float | None = average,
            standings: tuple[Standing, ...] = standings,
        ) -> None:
            on_progress(Progress(lesson, len(lessons[0]), step, average, standings))

        before = time.perf_counter()
        learner.learn([own[lesson] for own in lessons], report)
        learning.append(time.perf_counter() - before)
        alive = [run for run in runs if not learner.diverged[run]]
        if not alive:
            break
        for other in range(min(index + 1 + unseen, count)):
            measured = learner.accuracy([stream[other] for stream in streams])
            for run in alive:
                matrices[run].record(index, other, measured[run])
        average = sum(matrices[run].average_accuracy_after(index) or 0.0 for run in alive) / len(alive)
        standings = standings_after(index, learner.seeds, matrices, alive)
        on_progress(Progress(lesson, len(lessons[0]), None, average, standings))
    seconds, use = time.perf_counter() - begun, learner.memory_use()
    return [
        Outcome(
            matrices[run],
            [accuracies[run] for accuracies in initial] if unseen else None,
            seconds,
            learning,
            learner.diverged[run],
            use[run],
        )
        for run in runs
    ]
