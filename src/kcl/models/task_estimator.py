"""What the scikit-learn estimators share: tasks by name, or without one, around a `ContinualModel`."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from kcl.errors import KclError
from kcl.models.continual_model import ContinualModel
from kcl.models.inputs import as_tensor, checked
from kcl.models.streaming_heads import StreamingSettings
from kcl.models.unlearning import Receipt

try:
    from sklearn.base import BaseEstimator
    from sklearn.utils import check_random_state
    from sklearn.utils.validation import check_is_fitted, validate_data
except ImportError:
    raise ImportError(
        "KernelContinualClassifier needs scikit-learn 1.6 or newer: pip install 'kernel-continual-learning[sklearn]'"
    ) from None

ONLY_TASK = "default"
NORMS = ("standardise", "l2", "none")


class TaskEstimator(BaseEstimator):  # type: ignore[misc]
    """Tasks by name, or without one. `_learn` differs between classes and numbers."""

    def _keep(self, parameters: Mapping[str, Any]) -> None:
        """Every parameter becomes the attribute of its name, as scikit-learn asks."""
        for name in self._get_param_names():
            setattr(self, name, parameters[name])

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        return tags

    def fit(self, X: Any, y: Any, task: Hashable | None = None, sample_weight: Any = None) -> Self:
        """Discard everything learned so far and learn one task; parameters as for `partial_fit`."""
        return self._learn(X, y, task, sample_weight, reset=True)

    def _learn(self, X: Any, y: Any, task: Hashable | None, sample_weight: Any, reset: bool, **options: Any) -> Self:
        raise NotImplementedError

    def _teach(self, X: Any, y: Any, task: Hashable | None, reset: bool, **options: Any) -> None:
        """A lesson for a new model or for the present one, of checked rows."""
        with as_value_error():
            model = self._make() if reset else self.model_
            model.columns = tuple(getattr(self, "feature_names_in_", ()))
            model.learn(X, y, ONLY_TASK if task is None else str(task), **options)
        self.model_: ContinualModel = model

    def _make(self) -> ContinualModel:
        """A model that has learned nothing, from the parameters."""
        raise NotImplementedError

    def _made(self, kind: type[ContinualModel], head: str, **options: Any) -> ContinualModel:
        if self.normalise not in NORMS:
            raise KclError(f"unknown normalise {self.normalise!r}: use one of {', '.join(NORMS)}")
        seed = int(check_random_state(self.random_state).randint(2**31))
        options = {name: python_number(value) for name, value in options.items()}
        return kind(seed=seed, standardise=self.normalise == "standardise", head=head, **options)

    @property
    def tasks_(self) -> list[str]:
        """The names of the tasks learned so far."""
        check_is_fitted(self, "model_")
        return list(self.model_.tasks)

    def _queries(self, X: Any) -> npt.NDArray[np.float32]:
        check_is_fitted(self, "model_")
        return self._rows(X, "no_validation", reset=False)[0]

    def _rows(self, X: Any, y: Any, reset: bool, **options: Any) -> tuple[npt.NDArray[np.float32], Any]:
        """Dense rows of finite numbers, and their targets."""
        options |= {"dtype": np.float32, "accept_sparse": "csr", "ensure_all_finite": False}
        validated = validate_data(self, X, y, reset=reset, **options)
        X, y = validated if isinstance(validated, tuple) else (validated, None)
        X = X.toarray() if hasattr(X, "toarray") else np.array(X)
        with as_value_error():  # which says where, as scikit-learn's own check does not
            checked(as_tensor(X), X.shape[1:], tuple(getattr(self, "feature_names_in_", ())))
        return X, y


class StreamingEstimator(TaskEstimator):
    """On frozen features, with the parameters of `StreamingSettings` and forgetting."""

    _kind: type[ContinualModel]

    def _make(self) -> ContinualModel:
        given = self.get_params(deep=False)
        names = (*StreamingSettings.names(), "landmarks", "frequencies", "device")
        options = {name: given[name] for name in names if name in given}
        return self._made(self._kind, "streaming", unit_length=self.normalise == "l2", **options)

    def _forget(self, task: Hashable | None, classes: Sequence[Any] | None, samples: tuple[Any, Any] | None) -> Receipt:
        check_is_fitted(self, "model_")
        if samples is not None:
            samples = self._queries(samples[0]), np.asarray(samples[1])
        with as_value_error():
            return self.model_.forget(named(task), classes, samples)


def named(task: Hashable | None) -> str | None:
    """The name of a task, if one is given: tasks are told apart by `str(task)`."""
    return None if task is None else str(task)


def python_number(value: Any) -> Any:
    """NumPy scalars as Python numbers, which settings need."""
    return value.item() if isinstance(value, np.generic) else value


@contextmanager
def as_value_error() -> Iterator[None]:
    """Raise user errors as ValueError, as scikit-learn's callers expect."""
    try:
        yield
    except KclError as error:
        raise ValueError(str(error)) from None
