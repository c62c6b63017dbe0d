"""What trains s runs of one method over their streams, and the plain way of doing it: one run after another."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch
from torch import Tensor

from kcl.benchmarks.task import Task
from kcl.shapes import Float, Shaped
from kcl.training.run import OnStep, Run, Step


class Learner(ABC):
    """s runs of one method. A run's result does not depend on the runs beside it."""

    seeds: Sequence[int]
    answers_unseen: bool
    joint: bool = False
    """Whether the runs learn all tasks at once, as one."""

    @abstractmethod
    def learn(self, tasks: Sequence[Task], on_step: OnStep) -> None:
        """Every run learns its own version of the next task."""

    @abstractmethod
    def accuracy(self, tasks: Sequence[Task]) -> list[float]:
        """Percent correct of every run on its own version of a task; of no meaning where a run has diverged."""

    def scores(self, tasks: Sequence[Task]) -> list[Float[Tensor, "n c"]]:
        """Scores of the classes of every run's own version of a learned task; of no meaning where it has diverged."""
        raise NotImplementedError

    def kept_inputs(self, index: int) -> list[Shaped[Tensor, "m ..."] | None]:
        """The samples every run keeps of a learned task, as they are stored; None where none are kept by task."""
        raise NotImplementedError

    @property
    @abstractmethod
    def diverged(self) -> list[bool]:
        """Which runs met a loss that is not finite; they stay as they were before it."""

    @abstractmethod
    def memory_use(self) -> list[dict[str, int]]:
        """Samples and bytes kept by every run."""


class SeparateRuns(Learner):
    """Runs that share nothing but the loop: what a CPU does best, and what works for every module."""

    def __init__(self, runs: Sequence[Run]) -> None:
        self.runs = runs
        self.seeds = [run.seed for run in runs]
        self.answers_unseen, self.joint = runs[0].method.answers_unseen, runs[0].method.joint

    def learn(self, tasks: Sequence[Task], on_step: OnStep) -> None:
        for before, (run, task) in enumerate(zip(self.runs, tasks, strict=True)):

            def report(step: Step, before: int = before) -> None:
                on_step(Step(before * step.steps + step.step, len(self.runs) * step.steps, step.loss))

            if not run.diverged:
                run.learn(task, report)

    def accuracy(self, tasks: Sequence[Task]) -> list[float]:
        pairs = zip(self.runs, tasks, strict=True)
        return [math.nan if run.diverged else run.accuracy(task) for run, task in pairs]

    def scores(self, tasks: Sequence[Task]) -> list[Float[Tensor, "n c"]]:
        pairs = zip(self.runs, tasks, strict=True)
        return [
            torch.zeros(len(task.test), task.ways)
            if run.diverged
            else run.logits(task.test.inputs[task.test.rows], task).cpu()
            for run, task in pairs
        ]

    def kept_inputs(self, index: int) -> list[Shaped[Tensor, "m ..."] | None]:
        found = [None if run.diverged else run.kept[index].memory.get("inputs") for run in self.runs]
        return [None if inputs is None else inputs.cpu() for inputs in found]

    @property
    def diverged(self) -> list[bool]:
        return [run.diverged for run in self.runs]

    def memory_use(self) -> list[dict[str, int]]:
        return [run.memory_use() for run in self.runs]
