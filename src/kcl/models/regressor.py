"""The scikit-learn interface to targets that are numbers, or several labels at once: ridge takes them as they are.

The sums are those of a classifier with the targets in place of classes. One more target is 1 for every sample, so that
means are taken out of the others exactly (`statistics.TargetScale`).
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import torch
from sklearn.base import ClassifierMixin, MultiOutputMixin, RegressorMixin
from sklearn.utils.multiclass import type_of_target
from torch import Tensor

from kcl.core.shapes import Float
from kcl.errors import KclError
from kcl.models.continual_model import ContinualModel
from kcl.models.inference import finite
from kcl.models.inputs import Label, as_tensor
from kcl.models.streaming_heads import BATCH
from kcl.models.streaming_ridge import Solution
from kcl.models.task_estimator import StreamingEstimator, as_value_error, named
from kcl.models.unlearning import Receipt


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
        return self._streaming().classifier(self._known(task)).solution

    def respond(self, inputs: Any, task: str | None = None) -> Float[Tensor, "n t"]:
        """The targets of n inputs."""
        model = self.as_it_is()
        queries, solution = model._prepare(inputs), model.solution(task)
        features = model._streaming().ridge.features
        parts = [features(part) @ solution.weights for part in queries.split(BATCH)]
        assert solution.mean is not None  # noqa: S101 - the targets are numbers
        return torch.cat(parts) + solution.mean


class _StreamingTargets(MultiOutputMixin, StreamingEstimator):  # type: ignore[misc]
    """What both estimators share: numbers as targets."""

    _kind = StreamingRegression
    model_: StreamingRegression

    def __init__(
        self,
        features: str = "rbf",
        *,
        bases: int = 0,
        width: float = 0.0,
        strength_rule: str = "evidence",
        ridge_strength: float = 0.0,
        landmarks: Any = None,
        frequencies: Any = None,
        normalise: str = "standardise",
        device: Any = "cpu",
        random_state: Any = None,
    ) -> None:
        self._keep(locals())

    def partial_fit(self, X: Any, y: Any, task: Hashable | None = None, sample_weight: Any = None) -> Self:
        """Learn a new task, or more of an old one. Without a name, it is the same task every time."""
        return self._learn(X, y, task, sample_weight, reset=not hasattr(self, "model_"))

    def forget(self, task: Hashable | None = None, samples: tuple[Any, Any] | None = None) -> Receipt:
        """Forget a task, or samples (X, y) of it that are handed in again: afterwards the model equals one that never
        learned them.
        """
        return self._forget(task, None, samples)

    def _learn(self, X: Any, y: Any, task: Hashable | None, sample_weight: Any, reset: bool, **_: Any) -> Self:
        X, y = self._rows(X, y, reset, multi_output=True, y_numeric=True)
        self._teach(X, self._checked(np.asarray(y, np.float64)), task, reset, sample_weight=sample_weight)
        if reset:
            self.one_target_ = y.ndim == 1
        return self

    def _checked(self, y: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        return y

    def _responses(self, X: Any, task: Hashable | None) -> npt.NDArray[np.float64]:
        X = self._queries(X)
        with as_value_error():
            return finite(self.model_.respond(X, named(task))).cpu().numpy()


class StreamingKernelRegressor(RegressorMixin, _StreamingTargets):  # type: ignore[misc]
    """Kernel ridge regression onto one or several numbers, on frozen features, learned in any order and portions.

    Without samples and passes, the model is always the exact solution for everything learned so far: ridge regression
    of the targets' deviations from their mean. Parameters are those of `StreamingKernelClassifier`. Targets are (n,) or
    (n, targets) numbers. `kcl.merge` adds up several of them.
    """

    def predict(self, X: Any, task: Hashable | None = None) -> npt.NDArray[np.float64]:
        """The targets of each row, (n,) or (n, targets), by everything learned or by one task."""
        responses = self._responses(X, task)
        return responses[:, 0] if self.one_target_ else responses


class StreamingMultilabelClassifier(ClassifierMixin, _StreamingTargets):  # type: ignore[misc]
    """Several labels at once, from an (n, labels) indicator matrix: 1 where a row has a label, 0 elsewhere.

    Otherwise as `StreamingKernelRegressor`. A label is predicted where its response is nearer to 1 than to 0.
    """

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_class, tags.classifier_tags.multi_label = False, True
        return tags

    def _checked(self, y: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        if y.ndim != 2 or not np.isin(y, (0.0, 1.0)).all():
            raise ValueError(
                f"Unknown label type: {type_of_target(y)}; expected a column for each label with 1 where a row has it "
                "and 0 elsewhere"
            )
        self.classes_ = np.arange(y.shape[1])
        return y

    def decision_function(self, X: Any, task: Hashable | None = None) -> npt.NDArray[np.float64]:
        """The response of each label, (n, labels), less the threshold of one half."""
        return self._responses(X, task) - 0.5

    def predict(self, X: Any, task: Hashable | None = None) -> npt.NDArray[np.int64]:
        """The indicator matrix of the labels of each row, (n, labels), by everything learned or by one task."""
        return (self.decision_function(X, task) > 0.0).astype(np.int64)
