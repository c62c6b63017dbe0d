"""The scikit-learn interface to targets that are numbers, or several labels at once: ridge takes them as they are."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import torch
from sklearn.base import BaseEstimator, ClassifierMixin, MultiOutputMixin, RegressorMixin
from sklearn.utils.multiclass import type_of_target
from sklearn.utils.validation import check_is_fitted, validate_data

from kcl.core.shapes import Float
from kcl.errors import KclError
from kcl.models.estimator import NORMS, ONLY_TASK, _as_value_error, _python_number, _seed
from kcl.models.inference import finite
from kcl.models.inputs import sample_weights
from kcl.models.streaming_heads import StreamingSettings
from kcl.models.streaming_regression import StreamingRegression
from kcl.models.unlearning import Receipt

SETTINGS = ("features", "bases", "width", "strength_rule", "ridge_strength")


class _StreamingTargets(MultiOutputMixin, BaseEstimator):  # type: ignore[misc]
    """What both estimators share: numbers as targets, tasks by name or without one."""

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
        self.features = features
        self.bases = bases
        self.width = width
        self.strength_rule = strength_rule
        self.ridge_strength = ridge_strength
        self.landmarks = landmarks
        self.frequencies = frequencies
        self.normalise = normalise
        self.random_state = random_state

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        return tags

    def fit(self, X: Any, y: Any, task: Hashable | None = None, sample_weight: Any = None) -> Self:
        """Discard everything learned so far and learn one task."""
        return self._learn(X, y, task, sample_weight, reset=True)

    def partial_fit(self, X: Any, y: Any, task: Hashable | None = None, sample_weight: Any = None) -> Self:
        """Learn a new task, or more of an old one. Without a name, it is the same task every time."""
        return self._learn(X, y, task, sample_weight, reset=not hasattr(self, "model_"))

    def forget(self, task: Hashable | None = None, samples: tuple[Any, Any] | None = None) -> Receipt:
        """Forget a task, or samples (X, y) of it that are handed in again: afterwards the model equals one that never
        learned them.
        """
        check_is_fitted(self, "model_")
        given = None
        if samples is not None:
            x = self._queries(samples[0])
            y = torch.from_numpy(self._columns(np.asarray(samples[1], np.float64)))
            if len(x) != len(y) or not bool(torch.isfinite(y).all()):
                raise ValueError(f"{len(x)} rows need as many targets, which are finite numbers; there are {len(y)}")
            given = x, y
        with _as_value_error():
            return self.model_.forget(None if task is None else str(task), given)

    def _begun(self, x: Float[torch.Tensor, "n d"]) -> StreamingRegression:
        if self.normalise not in NORMS:
            raise KclError(f"unknown normalise {self.normalise!r}: use one of {', '.join(NORMS)}")
        values = {name: _python_number(getattr(self, name)) for name in SETTINGS}
        settings = StreamingSettings().replace(**values, unit_length=self.normalise == "l2")
        seed, standardise = _seed(self.random_state), self.normalise == "standardise"
        return StreamingRegression.begin(x, settings, seed, standardise, self.landmarks, self.frequencies)

    def _learn(self, X: Any, y: Any, task: Hashable | None, sample_weight: Any, reset: bool) -> Self:
        X, y = validate_data(
            self, X, y, dtype=np.float32, reset=reset, accept_sparse="csr", multi_output=True, y_numeric=True
        )
        y = self._checked(np.asarray(y, np.float64))
        x, targets = torch.from_numpy(_dense(X)), torch.from_numpy(self._columns(y))
        with _as_value_error():
            weights = sample_weights(sample_weight, len(x))
            if weights is not None:
                kept = weights > 0
                x, targets, weights = x[kept], targets[kept], weights[kept]
            model = self._begun(x) if reset else self.model_
            model.learn(x, targets, ONLY_TASK if task is None else str(task), weights)
        self.model_: StreamingRegression = model
        if reset:
            self.one_target_ = y.ndim == 1
        return self

    def _checked(self, y: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        return y

    def _columns(self, y: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        return np.array(y if y.ndim == 2 else y[:, None])

    def _queries(self, X: Any) -> Float[torch.Tensor, "n d"]:
        check_is_fitted(self, "model_")
        return torch.from_numpy(_dense(validate_data(self, X, dtype=np.float32, reset=False, accept_sparse="csr")))

    def _responses(self, X: Any, task: Hashable | None) -> npt.NDArray[np.float64]:
        x = self._queries(X)
        with _as_value_error():
            return finite(self.model_.predict(x, None if task is None else str(task))).numpy()


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


def _dense(X: Any) -> npt.NDArray[np.float32]:
    return X.toarray() if hasattr(X, "toarray") else np.array(X)
