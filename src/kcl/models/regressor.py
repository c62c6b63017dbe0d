"""The scikit-learn interface to targets that are numbers, or several labels at once: ridge takes them as they are."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any, Self

import numpy as np
import numpy.typing as npt
from sklearn.base import ClassifierMixin, MultiOutputMixin, RegressorMixin
from sklearn.utils.multiclass import type_of_target

from kcl.models.inference import finite
from kcl.models.streaming_regression import StreamingRegression
from kcl.models.task_estimator import StreamingEstimator, as_value_error, named
from kcl.models.unlearning import Receipt


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

    def _learn(
        self,
        X: Any,
        y: Any,
        task: Hashable | None,
        sample_weight: Any,
        reset: bool,
        classes: Any = None,  # noqa: ARG002
    ) -> Self:
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
            return finite(self.model_.respond(X, named(task))).numpy()


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
