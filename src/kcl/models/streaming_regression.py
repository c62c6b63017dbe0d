"""Ridge regression onto numbers from sums: tasks by name, learned in any order and portions, forgotten exactly, merged.

The sums are those of a classifier with the targets in place of classes. One more target is 1 for every sample, so that
means are taken out of the others exactly (`statistics.TargetScale`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from kcl.core.shapes import Float
from kcl.errors import KclError
from kcl.models.continual_model import ContinualModel
from kcl.models.inputs import Label, as_tensor
from kcl.models.streaming_heads import BATCH
from kcl.models.streaming_ridge import Solution


class StreamingRegression(ContinualModel):
    """What a `StreamingKernelRegressor` has learned. The labels of a task are the numbers of its targets, the last one
    that of the constant.
    """

    numbers = True

    @staticmethod
    def _labelled(inputs: Any, labels: Any) -> tuple[Tensor, np.ndarray]:
        x, y = as_tensor(inputs), np.asarray(labels, np.float64)
        if len(x) != len(y) or not np.isfinite(y).all():
            raise KclError(f"{len(x)} rows need as many targets, which are finite numbers; there are {len(y)}")
        return x, y if y.ndim == 2 else y[:, None]

    def _classes(
        self,
        name: str,
        y: np.ndarray,
        announced: Sequence[Label],  # noqa: ARG002
    ) -> tuple[Label, ...]:
        if self.tasks:
            self._targets(name, y, next(iter(self.tasks.values())).labels)
        return tuple(range(y.shape[1] + 1))

    def _targets(self, name: str, y: np.ndarray, classes: tuple[Label, ...]) -> Tensor:  # noqa: ARG002
        if y.shape[1] != classes[-1]:
            raise KclError(f"the targets have {y.shape[1]} columns; those that were learned have {classes[-1]}")
        return torch.nn.functional.pad(as_tensor(y), (0, 1), value=1.0)

    def solution(self, task: str | None = None) -> Solution:
        """Weights, λ and condition, of a task or of everything learned."""
        return self._streaming().classifier(None if task is None else self._known(task)).solution

    def respond(self, inputs: Any, task: str | None = None) -> Float[Tensor, "n t"]:
        """The targets of n inputs."""
        model = self.as_it_is()
        queries, solution = model._prepare(inputs), model.solution(task)
        features = model._streaming().ridge.features
        parts = [features(part) @ solution.weights for part in queries.split(BATCH)]
        assert solution.mean is not None  # noqa: S101 - the targets are numbers
        return torch.cat(parts) + solution.mean
