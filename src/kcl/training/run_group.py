"""What trains s runs of one method over their streams, and the plain way of doing it: one run after another."""

from __future__ import annotations

import itertools
import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor

from kcl.benchmarks.task import Task
from kcl.core.shapes import Float, Shaped
from kcl.errors import KclError
from kcl.training.checkpoint import Saved, branch
from kcl.training.restoring import Lessons, fingerprint, restore_run, run_state, whole_number
from kcl.training.single_run import BetweenSteps, OnStep, Run, Step

Own = TypeVar("Own")


class Learner(ABC):
    """s runs of one method. A run's result does not depend on the runs beside it.

    Runs that differ in how they are tested only share one training; they follow one another. Whatever is asked for or
    given is of every run, in this order.
    """

    seeds: Sequence[int]
    answers_unseen: bool
    joint: bool = False
    """Whether the runs learn all tasks at once, as one."""

    @abstractmethod
    def learn(self, tasks: Sequence[Task], on_step: OnStep, between_steps: BetweenSteps = lambda: None) -> None:
        """Every run learns its own version of the next task, or the rest of it where it was restored in the midst."""

    @abstractmethod
    def accuracy(self, tasks: Sequence[Task]) -> list[float]:
        """Percent correct of every run on its own version of a task; of no meaning where a run has diverged."""

    @abstractmethod
    def scores(self, tasks: Sequence[Task]) -> list[Float[Tensor, "n c"]]:
        """Scores of the classes of every run's own version of a learned task; of no meaning where it has diverged."""

    @abstractmethod
    def kept_inputs(self, index: int) -> list[Shaped[Tensor, "m ..."] | None]:
        """The samples every run keeps of a learned task, as they are stored; None where none are kept by task."""

    @property
    @abstractmethod
    def diverged(self) -> list[bool]:
        """Which runs met a loss that is not finite; they stay as they were before it."""

    @abstractmethod
    def memory_use(self) -> list[dict[str, int]]:
        """Samples and bytes kept by every run."""

    @abstractmethod
    def saved(self) -> Saved:
        """Everything needed to go on, between two steps or two tasks."""

    @abstractmethod
    def restore(self, saved: Saved, lessons: Sequence[Lessons]) -> None:
        """Stand where the saved runs stood; for runs that have learned nothing yet. `lessons`: of every run."""

    @abstractmethod
    def fingerprints(self) -> list[str]:
        """A digest of every parameter, statistic and memory of each run."""


class SeparateRuns(Learner):
    """Runs that share nothing but the loop: what a CPU does best, and what works for every module."""

    def __init__(self, runs: Sequence[Run]) -> None:
        self.runs = runs
        self._each = [(run, variant) for run in runs for variant in range(len(run.variants))]
        self.seeds = [run.seed for run, _ in self._each]
        self.answers_unseen, self.joint = runs[0].method.answers_unseen, runs[0].method.joint
        self._first = 0
        """The runs before this one have learned the next task already: the others were restored in the midst of it."""

    def learn(self, tasks: Sequence[Task], on_step: OnStep, between_steps: BetweenSteps = lambda: None) -> None:
        first, self._first = self._first, 0
        for before, (run, task) in enumerate(zip(self.runs, self._of_trainings(tasks), strict=True)):

            def report(step: Step, before: int = before) -> None:
                on_step(Step(before * step.steps + step.step, len(self.runs) * step.steps, step.loss))

            if before >= first and not run.diverged:
                run.learn(task, report, between_steps)

    def accuracy(self, tasks: Sequence[Task]) -> list[float]:
        pairs = zip(self._each, tasks, strict=True)
        return [math.nan if run.diverged else run.accuracy(task, variant) for (run, variant), task in pairs]

    def scores(self, tasks: Sequence[Task]) -> list[Float[Tensor, "n c"]]:
        pairs = zip(self._each, tasks, strict=True)
        return [
            torch.zeros(len(task.test), task.ways)
            if run.diverged
            else run.logits(task.test.inputs[task.test.rows], task, variant).cpu()
            for (run, variant), task in pairs
        ]

    def kept_inputs(self, index: int) -> list[Shaped[Tensor, "m ..."] | None]:
        found = [None if run.diverged else run.kept[index].memory.get("inputs") for run, _ in self._each]
        return [None if inputs is None else inputs.cpu() for inputs in found]

    @property
    def diverged(self) -> list[bool]:
        return [run.diverged for run, _ in self._each]

    def memory_use(self) -> list[dict[str, int]]:
        return [run.memory_use(variant) for run, variant in self._each]

    def saved(self) -> Saved:
        about = [{"step": run.midway and run.midway.step, "diverged": run.diverged} for run in self.runs]
        return Saved({str(place): run_state(run) for place, run in enumerate(self.runs)}, {"separate runs": about})

    def restore(self, saved: Saved, lessons: Sequence[Lessons]) -> None:
        about: Any = saved.about.get("separate runs")
        sound = isinstance(about, list) and len(about) == len(self.runs) and all(isinstance(own, dict) for own in about)
        if not sound:
            raise KclError(
                f"the checkpoint does not fit the run: it is not one of {len(self.runs)} runs trained one by one"
            )
        for place, (run, own, tasks) in enumerate(zip(self.runs, about, self._of_trainings(lessons), strict=True)):
            step = whole_number(own.get("step"), "the step", 2**53, or_none=True)
            restore_run(run, branch(saved.tensors, str(place)), step, own.get("diverged") is True, tasks)
            if step is not None:
                self._first = place

    def fingerprints(self) -> list[str]:
        return [fingerprint(run, variant) for run, variant in self._each]

    def _of_trainings(self, given: Sequence[Own]) -> list[Own]:
        return of_trainings(given, [len(run.variants) for run in self.runs])


def of_trainings(given: Sequence[Own], variants: Sequence[int]) -> list[Own]:
    """What is given for every run, once for every training. `variants`: how many runs share each."""
    firsts = [0, *itertools.accumulate(variants)]
    if len(given) != firsts.pop():
        raise ValueError(f"{len(given)} given, for {sum(variants)} runs")
    return [given[first] for first in firsts]
