"""Runs over their whole streams: tasks in order, evaluation after each, and what was measured."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

from kcl.benchmarks.joint_task import JointTask, join
from kcl.benchmarks.task import Stream
from kcl.core.metrics import AccuracyMatrix
from kcl.errors import KclError
from kcl.training.checkpoint import Saved
from kcl.training.checkpointer import Keeper
from kcl.training.cuda_graph import Step
from kcl.training.history import Ledger
from kcl.training.run_progress import Standing, standings_after
from kcl.training.stack import RunStack
from kcl.training.stopping import Interrupted


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
    resumed: int
    """How often the run was gone on with after it had been stopped."""
    fingerprint: str
    """A digest of every parameter, statistic and memory at the end."""


OnProgress = Callable[[Progress], None]


def run_streams(
    learner: RunStack,
    streams: Sequence[Stream],
    on_progress: OnProgress = lambda _: None,
    keeper: Keeper | None = None,
) -> list[Outcome]:
    """Learn every task in order; after each, test every task seen so far, and the next one where that is possible.

    Runs that learn all tasks at once are tested on all of them after that: the last row of the matrix is theirs.
    `keeper` saves the runs on the way, and where it has them saved already they go on from there.
    """
    made: dict[int, Stream | list[JointTask]] = {  # runs that share a training share a stream
        id(stream): [join(list(stream), len(stream.class_labels))] if learner.joint else stream for stream in streams
    }
    lessons = [made[id(stream)] for stream in streams]
    journey = _Journey(learner, streams, lessons, keeper or Keeper())
    ledger = journey.ledger
    with journey.keeper.stop.deferred():
        journey.go(on_progress)
    seconds, use, fingerprints = ledger.seconds, learner.memory_use(), learner.fingerprints()
    return [
        Outcome(
            ledger.matrices[run],
            [accuracies[run] for accuracies in ledger.initial] if learner.answers_unseen else None,
            seconds,
            ledger.learning,
            learner.diverged[run],
            use[run],
            ledger.resumed,
            fingerprints[run],
        )
        for run in range(len(streams))
    ]


class _Journey:
    """Runs on their way through their streams."""

    def __init__(
        self,
        learner: RunStack,
        streams: Sequence[Stream],
        lessons: Sequence[Stream | list[JointTask]],
        keeper: Keeper,
    ) -> None:
        self.learner, self.streams, self.lessons, self.keeper = learner, streams, lessons, keeper
        self.count = len(streams[0])
        self.ledger = Ledger(len(streams), self.count)

    def go(self, on_progress: OnProgress) -> None:
        """All of the way, or what is left of it."""
        self.resume()
        with self.interruptible():
            self.test_untrained()
        for lesson in range(self.ledger.tested, len(self.lessons[0])):
            self.learn(lesson, on_progress)
            if all(self.learner.diverged):
                break
            with self.interruptible():
                average = self.test(lesson)
            on_progress(Progress(lesson, len(self.lessons[0]), None, average, self._standings(lesson)))
            self.keeper.after_task(self.state)

    def resume(self) -> None:
        """Stand where the newest checkpoint was saved, if there is one."""
        saved = self.keeper.newest()
        if saved is not None:
            self.ledger.restore(saved.about.get("ledger"))
            if self.ledger.learned > len(self.lessons[0]):
                raise KclError("the checkpoint does not fit the run: it has learned more than there is")
            made = {id(own): list(own) for own in self.lessons}
            self.learner.restore(saved, [made[id(own)] for own in self.lessons])

    def state(self, learning: float | None = None) -> Saved:
        tensors, about = self.learner.saved()
        return Saved(tensors, about | {"ledger": self.ledger.to_dict(learning)})

    @contextmanager
    def interruptible(self) -> Iterator[None]:
        """A test changes nothing, so that a signal may cut it short; what was learned before is saved."""
        try:
            with self.keeper.stop.promptly():
                yield
        except Interrupted:
            if self.ledger.learned:
                self.keeper.save(self.state)
            raise

    def test_untrained(self) -> None:
        """What the runs know before they have learned anything, where they can answer at all."""
        if self.learner.answers_unseen:
            for index in range(len(self.ledger.initial), self.count):
                self.ledger.initial.append(self._accuracy(index))

    def learn(self, lesson: int, on_progress: OnProgress) -> None:
        """The lesson, or what is left of it."""
        ledger, total = self.ledger, len(self.lessons[0])
        if ledger.learned > lesson:
            return
        alive = self._alive()
        average = ledger.average(self._index(lesson - 1), alive) if lesson and alive else None
        before = ledger.learning.pop() if len(ledger.learning) > lesson else 0.0
        begun = time.perf_counter()

        standings = self._standings(lesson - 1)

        def report(step: Step) -> None:
            on_progress(Progress(lesson, total, step, average, standings))

        def state() -> Saved:
            return self.state(before + time.perf_counter() - begun)

        tasks = [own[lesson] for own in self.lessons]
        self.learner.learn(tasks, report, lambda: self.keeper.after_step(state))
        ledger.learning.append(before + time.perf_counter() - begun)
        ledger.learned = lesson + 1

    def test(self, lesson: int) -> float:
        """A row of the matrix of every run that is alive; their average accuracy."""
        index, alive = self._index(lesson), self._alive()
        for other in range(min(index + 1 + self.learner.answers_unseen, self.count)):
            measured = self._accuracy(other)
            for run in alive:
                self.ledger.matrices[run].record(index, other, measured[run])
        self.ledger.tested = lesson + 1
        return self.ledger.average(index, alive)

    def _accuracy(self, index: int) -> list[float]:
        return self.learner.accuracy([stream[index] for stream in self.streams])

    def _standings(self, lesson: int) -> tuple[Standing, ...]:
        """How each run did after a lesson; before the first there is nothing to tell."""
        after = self._index(lesson) if lesson >= 0 else None
        return standings_after(after, self.learner.seeds, self.ledger.matrices, self._alive())

    def _alive(self) -> list[int]:
        return [run for run, diverged in enumerate(self.learner.diverged) if not diverged]

    def _index(self, lesson: int) -> int:
        """The row of the matrix that follows a lesson."""
        return self.count - len(self.lessons[0]) + lesson
