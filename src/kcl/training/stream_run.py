"""Runs over their whole streams: the tasks in order, a test after each, and the results."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from kcl.benchmarks.joint_task import join
from kcl.benchmarks.task import Stream, Task
from kcl.core.metrics import AccuracyMatrix
from kcl.errors import KclError
from kcl.training.checkpoint import Saved
from kcl.training.checkpointer import Checkpointer
from kcl.training.stack import RunStack
from kcl.training.step_progress import Step
from kcl.training.stopping import Interrupted


class RunProgress(NamedTuple):
    """One run after a task: percent correct on the tasks so far, their average, and forgetting. Empty if it diverged or
    has learned nothing yet.
    """

    seed: int
    accuracies: list[float | None]
    average_accuracy: float | None
    forgetting: float | None


class Progress(NamedTuple):
    """Progress of runs trained together: a step of the task being learned, or (step None) the end of that task."""

    task: int
    tasks: int
    step: Step | None
    average_accuracy: float | None
    """After the last task, averaged over the runs that have not diverged."""
    runs: tuple[RunProgress, ...] = ()
    """Every run after the last task."""


class Outcome(NamedTuple):
    """The result of a finished run. Times are those of all runs trained together."""

    matrix: AccuracyMatrix
    initial_accuracy: list[float] | None
    seconds: float
    learning_seconds: list[float]
    """Time spent learning each task, without tests."""
    diverged: bool
    memory: dict[str, int]
    resumed: int
    """How often the run was resumed after an interruption."""
    fingerprint: str
    """A digest of every parameter, statistic and memory at the end."""
    task_confusion: list[list[int]] | None = None
    """Where classes of all tasks are compared, at the end: how many test samples of each task (row) are taken for
    samples of each task (column).
    """


OnProgress = Callable[[Progress], None]


def run_streams(
    learner: RunStack,
    streams: Sequence[Stream],
    on_progress: OnProgress = lambda _: None,
    checkpointer: Checkpointer | None = None,
) -> list[Outcome]:
    """Learn every task in order; after each, test every task seen so far, and the next one where that is possible.

    Runs that learn all tasks jointly are tested on all of them afterwards, which fills the last row of the matrix.
    `checkpointer` saves the runs on the way. If it already has a checkpoint of them, they resume from it.
    """
    run = _StreamRun(learner, streams, checkpointer or Checkpointer())
    with run.checkpointer.stop.deferred():
        run.finish(on_progress)
    return run.outcomes()


class _History:
    """How far runs have come, and what was measured.

    `learned` and `tested` count training tasks; they differ by one between the last step of a task and the end of its
    test.
    """

    def __init__(self, runs: int, tasks: int) -> None:
        self.matrices: list[AccuracyMatrix] = [AccuracyMatrix(tasks) for _ in range(runs)]
        self.initial: list[list[float | None]] = []
        """Accuracies of the untrained runs on the tasks measured so far; None for runs that cannot answer yet."""
        self.learning: list[float] = []
        """Seconds spent learning each task, including the one being learned."""
        self.learned = self.tested = self.resumed = 0
        self._start = time.perf_counter()

    @property
    def seconds(self) -> float:
        """Total time, without pauses between a checkpoint and its resumption."""
        return time.perf_counter() - self._start

    def average(self, index: int, alive: Sequence[int]) -> float:
        """Average accuracy over the tasks up to `index` and the runs that are alive."""
        return sum(self.matrices[run].average_accuracy_after(index) or 0.0 for run in alive) / len(alive)

    def saved(self, learning: float | None = None) -> Saved:
        """`learning`: seconds spent so far on a task that is still being learned.

        The accuracies are a tensor: the text of a checkpoint has a limit that the matrices of long streams exceed.
        """
        values = np.stack([matrix.values for matrix in self.matrices])
        record = {
            "initial": self.initial,
            "learning": [*self.learning, *([] if learning is None else [learning])],
            "learned": self.learned,
            "tested": self.tested,
            "resumed": self.resumed,
            "seconds": self.seconds,
        }
        return Saved({"accuracies": torch.from_numpy(values)}, {"ledger": record})

    def restore(self, saved: Saved) -> None:
        """The inverse of `saved`. Inconsistent values are refused."""
        try:
            record = saved.about["ledger"]
            older = record.get("matrices")  # of versions that kept them as text
            matrices = [AccuracyMatrix.from_lists(rows) for rows in older or _rows(saved.tensors["accuracies"])]
            count = self.matrices[0].task_count
            self.initial, self.learning = record["initial"], [float(seconds) for seconds in record["learning"]]
            self.learned, self.tested, self.resumed = (int(record[name]) for name in ("learned", "tested", "resumed"))
            self._start -= float(record["seconds"])
            valid = (
                [matrix.task_count for matrix in matrices] == [count] * len(self.matrices)
                and len(self.initial) <= count
                and all(len(row) == len(matrices) for row in self.initial)
                and 0 <= self.tested <= self.learned <= self.tested + 1 <= count + 1
                and len(self.learning) - self.learned in (0, 1)
            )
        except (KeyError, TypeError, ValueError, AttributeError):
            valid = False
        if not valid:
            raise KclError("the checkpoint does not fit the run: its record of progress is missing or inconsistent")
        self.matrices = matrices
        self.resumed += 1


def _rows(matrices: Tensor) -> list[list[list[float | None]]]:
    return [[[None if math.isnan(value) else value for value in row] for row in matrix] for matrix in matrices.tolist()]


class _StreamRun:
    """Runs in the middle of their streams.

    Each run has a stream, which it is tested on, and training tasks: the same stream, or all its tasks joined into one.
    """

    def __init__(self, learner: RunStack, streams: Sequence[Stream], checkpointer: Checkpointer) -> None:
        self.learner, self.streams, self.checkpointer = learner, streams, checkpointer
        by_stream: dict[int, Stream | list[Task]] = {  # runs that share a training share a stream
            id(stream): [join(list(stream), len(stream.class_labels))] if learner.joint else stream
            for stream in streams
        }
        self.training_tasks = [by_stream[id(stream)] for stream in streams]
        self.task_count, self.training_count = len(streams[0]), len(self.training_tasks[0])
        self.history = _History(len(streams), self.task_count)

    def finish(self, on_progress: OnProgress) -> None:
        """Learn and test all tasks that are left."""
        self._resume()
        with self._interruptible():
            for index in range(len(self.history.initial), self.task_count if self.learner.answers_unseen else 0):
                self.history.initial.append(self._accuracy(index))
        for number in range(self.history.tested, self.training_count):
            self._learn(number, on_progress)
            if all(self.learner.diverged):
                break
            with self._interruptible():
                average = self._test(number)
            on_progress(Progress(number, self.training_count, None, average, self._progress_after(number)))
            self.checkpointer.after_task(self._state)

    def outcomes(self) -> list[Outcome]:
        learner, history, seconds = self.learner, self.history, self.history.seconds
        initial = [
            [value for of_runs in history.initial if (value := of_runs[run]) is not None] or None
            for run in range(len(self.streams))
        ]
        by_run = (history.matrices, initial, learner.diverged, learner.memory_use(), learner.fingerprints())
        return [
            Outcome(matrix, untrained, seconds, history.learning, diverged, memory, history.resumed, *rest)
            for matrix, untrained, diverged, memory, *rest in zip(*by_run, self._confusions(), strict=True)
        ]

    def _confusions(self) -> list[list[list[int]] | None]:
        """Of every run that has learned all tasks and compares the classes of all."""
        confusions: list[list[list[int]]] = [[] for _ in self.streams]
        if self.learner.compares_tasks and self.history.tested == self.training_count:  # not if all have diverged
            for index in range(self.task_count):
                answered = self.learner.answered_tasks([stream[index] for stream in self.streams])
                for run in self._alive():
                    confusions[run] += [row] if (row := answered[run]) is not None else []
        return [rows or None for rows in confusions]

    def _resume(self) -> None:
        """Restore the newest checkpoint, if there is one."""
        saved = self.checkpointer.newest()
        if saved is not None:
            self.history.restore(saved)
            if self.history.learned > self.training_count:
                raise KclError("the checkpoint does not fit the run: it has learned more tasks than the stream has")
            by_run = {id(tasks): list(tasks) for tasks in self.training_tasks}
            self.learner.restore(saved, [by_run[id(tasks)] for tasks in self.training_tasks])

    def _state(self, learning: float | None = None) -> Saved:
        tensors, about = self.learner.saved()
        measured = self.history.saved(learning)
        return Saved(tensors | measured.tensors, about | measured.about)

    @contextmanager
    def _interruptible(self) -> Iterator[None]:
        """A test changes nothing, so a signal may cut it short; what was learned before is saved."""
        try:
            with self.checkpointer.stop.deferred(False):
                yield
        except Interrupted:
            if self.history.learned:
                self.checkpointer.save(self._state)
            raise

    def _learn(self, number: int, on_progress: OnProgress) -> None:
        """Learn a training task, or the rest of it."""
        history = self.history
        if history.learned > number:
            return
        alive = self._alive()
        average = history.average(self._index(number - 1), alive) if number and alive else None
        runs = self._progress_after(number - 1)
        start = time.perf_counter() - (history.learning.pop() if len(history.learning) > number else 0.0)

        def seconds() -> float:
            return time.perf_counter() - start

        def report(step: Step) -> None:
            on_progress(Progress(number, self.training_count, step, average, runs))

        tasks = [tasks[number] for tasks in self.training_tasks]
        self.learner.learn(tasks, report, lambda: self.checkpointer.after_step(lambda: self._state(seconds())))
        history.learning.append(seconds())
        history.learned = number + 1

    def _test(self, number: int) -> float:
        """Fill a row of the matrix of every run that is alive; returns their average accuracy."""
        row, alive = self._index(number), self._alive()
        for index in range(min(row + 1 + self.learner.answers_unseen, self.task_count)):
            accuracies = self._accuracy(index)
            for run in alive:
                if (accuracy := accuracies[run]) is not None:
                    self.history.matrices[run].record(row, index, accuracy)
        self.history.tested = number + 1
        return self.history.average(row, alive)

    def _accuracy(self, index: int) -> list[float | None]:
        accuracies = self.learner.accuracy([stream[index] for stream in self.streams])
        return [None if math.isnan(accuracy) else accuracy for accuracy in accuracies]

    def _progress_after(self, number: int) -> tuple[RunProgress, ...]:
        """Every run after a training task; −1: before the first."""
        row, alive = self._index(number), self._alive()
        return tuple(
            RunProgress(seed, [], None, None)
            if number < 0 or run not in alive
            else RunProgress(
                seed,
                matrix.to_lists()[row][: row + 1],
                matrix.average_accuracy_after(row),
                matrix.forgetting_after(row),
            )
            for run, (seed, matrix) in enumerate(zip(self.learner.seeds, self.history.matrices, strict=True))
        )

    def _alive(self) -> list[int]:
        return [run for run, diverged in enumerate(self.learner.diverged) if not diverged]

    def _index(self, number: int) -> int:
        """The row of the matrix that the test after a training task fills."""
        return self.task_count - self.training_count + number
