"""Ridge regression onto numbers from sums: tasks by name, learned in any order and portions, forgotten exactly, merged.

The sums are those of a classifier with the targets in place of classes. One more target is 1 for every sample, so that
means are taken out of the others exactly (`statistics.TargetScale`).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from kcl.benchmarks.task import View
from kcl.core.settings import nearest
from kcl.core.shapes import Float
from kcl.errors import KclError
from kcl.models import scaling, unlearning
from kcl.models.lessons import LearnedTask
from kcl.models.streaming_heads import BATCH, StreamingHeads, StreamingSettings, features_given
from kcl.models.streaming_ridge import Solution
from kcl.models.unlearning import Receipt


class StreamingRegression:
    """What a `StreamingKernelRegressor` has learned. `kcl.merge` adds several up."""

    dtype = torch.float32

    def __init__(self, heads: StreamingHeads, view: View, columns: tuple[str, ...] = ()) -> None:
        self.heads, self.view, self.columns = heads, view, columns
        self.tasks: dict[str, LearnedTask] = {}
        """The labels of a task are the numbers of its targets, the last one that of the constant."""
        self.history: list[dict[str, Any]] = []

    @classmethod
    def begin(
        cls,
        x: Float[Tensor, "n d"],
        settings: StreamingSettings,
        seed: int,
        standardise: bool,
        landmarks: Any = None,
        frequencies: Any = None,
    ) -> StreamingRegression:
        """Choose scaling and features from the first samples."""
        view = scaling.measured(x) if standardise else View()
        given = features_given(landmarks, frequencies, view, x.shape[1:])
        return cls(StreamingHeads.begin(settings, view.scale(x), seed, "cpu", given, numbers=True), view)

    def blank_copy(self) -> StreamingRegression:
        """One that has learned nothing, with the same features and scaling: where models that are merged begin."""
        old = self.heads
        heads = StreamingHeads(old.settings, old.ridge.features, old.seed, old.device, numbers=True)
        return StreamingRegression(heads, self.view, self.columns)

    def learn(
        self, x: Float[Tensor, "n d"], y: Float[Tensor, "n t"], task: str, weights: Float[Tensor, " n"] | None = None
    ) -> None:
        if self.tasks and (known := next(iter(self.tasks.values())).labels[-1]) != y.shape[1]:
            raise KclError(f"the targets have {y.shape[1]} columns; those that were learned have {known}")
        heads = self.heads.fork()
        for rows in torch.arange(len(x)).split(BATCH):
            part = None if weights is None else weights[rows]
            features, held_out = heads.features(self.view, x[rows]), heads.held_out(x[rows])
            heads.ridge.learn(task, features, _with_one(y[rows]), y.shape[1] + 1, part, held_out)
        self.heads = heads
        old = self.tasks.get(task, LearnedTask(len(self.tasks), tuple(range(y.shape[1] + 1)), (0,) * (y.shape[1] + 1)))
        self.tasks[task] = LearnedTask(old.lesson, old.labels, tuple(seen + len(x) for seen in old.seen))
        self.history.append({"task": task, "samples": len(x)})

    def solution(self, task: str | None = None) -> Solution:
        """Weights, λ and condition, of a task or of everything learned."""
        if not self.tasks:
            raise KclError("everything was forgotten: learn something first")
        places = {name: range(len(known.labels)) for name, known in self.tasks.items()}
        return self.heads.ridge.solution(places, None if task is None else self._known(task))

    def predict(self, x: Float[Tensor, "n d"], task: str | None = None) -> Float[Tensor, "n t"]:
        solution = self.solution(task)
        parts = [self.heads.features(self.view, part) @ solution.weights for part in x.split(BATCH)]
        assert solution.mean is not None  # noqa: S101 - the targets are numbers
        return torch.cat(parts) + solution.mean

    def forget(
        self,
        task: str | None = None,
        samples: tuple[Float[Tensor, "n d"], Float[Tensor, "n t"]] | None = None,
        weights: Float[Tensor, " n"] | None = None,
    ) -> Receipt:
        """Forget a task, or samples of it that are handed in again. A task alone need not be named."""
        if task is None and len(self.tasks) != 1:
            raise KclError("name the task that is to be forgotten, or that the samples belong to")
        name = next(iter(self.tasks)) if task is None else self._known(task)
        heads = self.heads.fork()
        ridge, what = heads.ridge, f"task {name!r}"
        if samples is None:
            removal = unlearning.of_task(ridge, self.tasks, name)
        else:
            x, y = samples
            if y.shape[1] != (known := self.tasks[name].labels[-1]):
                raise KclError(f"the targets have {y.shape[1]} columns; those that were learned have {known}")
            features, held_out = heads.features(self.view, x), heads.held_out(x)
            removal = unlearning.of_numbers(ridge, self.tasks, name, features, _with_one(y), weights, held_out)
            what = f"{len(x)} samples of {what}"
        receipt = unlearning.carry_out(ridge, self.tasks, removal, what)
        self.heads, self.tasks = heads, removal.tasks
        self.history.append({"task": name, "samples": -receipt.samples})
        return receipt

    def _known(self, name: str) -> str:
        if name not in self.tasks:
            raise KclError(f"task {name!r} was not learned; {nearest(name, list(self.tasks))}")
        return name


def _with_one(y: Float[Tensor, "n t"]) -> Float[Tensor, "n t+1"]:
    return torch.nn.functional.pad(y.double(), (0, 1), value=1.0)
