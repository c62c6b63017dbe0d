"""What the scikit-learn classifiers share: tasks by name, or without one, around a `ContinualModel`."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import torch

from kcl.errors import KclError
from kcl.models.continual_model import ContinualModel
from kcl.models.inference import finite
from kcl.models.inputs import as_tensor, checked
from kcl.models.streaming_heads import StreamingSettings

try:
    from sklearn.base import BaseEstimator, ClassifierMixin
    from sklearn.utils import check_random_state
    from sklearn.utils.multiclass import check_classification_targets, unique_labels
    from sklearn.utils.validation import check_is_fitted, validate_data
except ImportError:
    raise ImportError(
        "KernelContinualClassifier needs scikit-learn 1.6 or newer: pip install 'kernel-continual-learning[sklearn]'"
    ) from None

ONLY_TASK = "default"
NORMS = ("standardise", "l2", "none")
STREAMING = StreamingSettings.names()


class TaskClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """What both classifiers share: tasks by name, or without one, around a `ContinualModel`."""

    def _make(self) -> ContinualModel:
        """A model that has learned nothing, from the parameters."""
        raise NotImplementedError

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        return tags

    # Learning

    def fit(self, X: Any, y: Any, task: Hashable | None = None, sample_weight: Any = None) -> Self:
        """Discard everything learned so far and learn one task; parameters as for `partial_fit`."""
        return self._learn(X, y, None, task, sample_weight, reset=True)

    def partial_fit(
        self, X: Any, y: Any, classes: Any = None, task: Hashable | None = None, sample_weight: Any = None
    ) -> Self:
        """Learn a new task, or more of an old one. Without a name, it is the same task every time.

        Parameters
        ----------
        X : (n, d)
            Rows: an array, a table or a sparse matrix.
        y : (n,)
            Their labels.
        classes : (c,), optional
            Labels whose samples may come later.
        task : str, optional
            The task's name.
        sample_weight : (n,), optional
            Where a network or kernel learns, samples can be left out by a weight of zero, and the others must weigh the
            same.
        """
        return self._learn(X, y, classes, task, sample_weight, reset=not hasattr(self, "model_"))

    def _learn(self, X: Any, y: Any, classes: Any, task: Hashable | None, sample_weight: Any, reset: bool) -> Self:
        X, y = self._rows(X, y, reset)
        check_classification_targets(y)
        announced = [] if classes is None else list(unique_labels(classes))
        # One known label is enough to refuse others of another kind: with all of thousands it would take long.
        known: Any = [] if reset else self.classes_
        added = unique_labels(*(labels for labels in (y, announced, known[:1]) if len(labels)))
        all_classes = added if reset else np.union1d(known, added)
        with as_value_error():
            model = self._make() if reset else self.model_
            model.columns = tuple(getattr(self, "feature_names_in_", ()))
            name = ONLY_TASK if task is None else str(task)
            model.learn(X, y, name, classes=np.array(announced).tolist(), sample_weight=sample_weight)
        self.model_: ContinualModel = model
        self.classes_: npt.NDArray[Any] = all_classes
        return self

    # Prediction

    @property
    def tasks_(self) -> list[str]:
        """The names of the tasks learned so far."""
        return list(self._learned().tasks)

    def predict(self, X: Any, task: Any = None) -> npt.NDArray[Any]:
        """The class of each row, (n,): among those of its task, or if no task is named, of all tasks.

        Parameters
        ----------
        X : (n, d)
            Rows.
        task : str or (n,) of str, optional
            One name, or one for each row.
        """
        probabilities = self.predict_proba(X, task)
        return self.classes_[probabilities.argmax(1)]

    def predict_proba(self, X: Any, task: Any = None) -> npt.NDArray[np.float64]:
        """The probability of each of `classes_`, (n, classes); zero for those that the row cannot have."""
        X = self._queries(X)
        probabilities = np.zeros((len(X), len(self.classes_)))
        for name, rows in self._tasks(X, task):
            labels = self.model_.labels if name is None else self.model_.tasks[name].labels
            columns = np.searchsorted(self.classes_, np.array(labels, dtype=self.classes_.dtype))
            with as_value_error():
                scores = finite(self.model_.logits(X[rows], name).softmax(-1), rows.tolist())
            of_task = scores.double().cpu().numpy()
            probabilities[np.ix_(rows, columns)] = of_task / of_task.sum(1, keepdims=True)
        return probabilities

    def predict_task(self, X: Any) -> npt.NDArray[Any]:
        """The task inferred for each row, (n,)."""
        return self.model_.predict(self._queries(X)).task

    def predict_variance(self, X: Any, task: Any = None) -> npt.NDArray[np.float64]:
        """The predictive variance of each row, (n,): near zero close to what was learned, large far from it."""
        X = self._queries(X)
        variance = np.zeros(len(X))
        for name, rows in self._tasks(X, task):
            of_task = torch.from_numpy(self.model_.predict(X[rows], name).variance)
            with as_value_error():
                variance[rows] = finite(of_task[:, None], rows.tolist())[:, 0]
        return variance

    def score(self, X: Any, y: Any, sample_weight: Any = None, task: Any = None) -> float:
        """The share of rows classified correctly, between 0 and 1."""
        from sklearn.metrics import accuracy_score

        return float(accuracy_score(y, self.predict(X, task), sample_weight=sample_weight))

    def _learned(self) -> ContinualModel:
        check_is_fitted(self, "model_")
        return self.model_

    def _queries(self, X: Any) -> npt.NDArray[np.float32]:
        check_is_fitted(self, "model_")
        return self._rows(X, "no_validation", reset=False)[0]

    def _rows(self, X: Any, y: Any, reset: bool) -> tuple[npt.NDArray[np.float32], Any]:
        """Dense rows of finite numbers, and their labels."""
        options = {"dtype": np.float32, "accept_sparse": "csr", "ensure_all_finite": False}
        validated = validate_data(self, X, y, reset=reset, **options)
        X, y = validated if isinstance(validated, tuple) else (validated, None)
        X = X.toarray() if hasattr(X, "toarray") else np.array(X)
        with as_value_error():  # which says where, as scikit-learn's own check does not
            checked(as_tensor(X), X.shape[1:], tuple(getattr(self, "feature_names_in_", ())))
        return X, y

    def _tasks(self, X: npt.NDArray[np.float32], task: Any) -> Iterator[tuple[str | None, npt.NDArray[np.intp]]]:
        """Task names with the rows that belong to them; None where all classes are compared at once."""
        if task is None and len(self.model_.tasks) == 1:
            task = next(iter(self.model_.tasks))
        if task is None:
            yield None, np.arange(len(X))
            return
        with as_value_error():
            if isinstance(task, Iterable) and not isinstance(task, str):  # a list, an array, a column of a table
                names = np.array([str(name) for name in task])
            else:
                names = np.full(len(X), str(task))
            if len(names) != len(X):
                raise KclError(f"{len(names)} task names for {len(X)} rows: give one name, or one for each row")
            for name in dict.fromkeys(names.tolist()):
                if name not in self.model_.tasks:
                    raise KclError(f"task {name!r} was not learned; learned: {', '.join(self.model_.tasks)}")
        for name in dict.fromkeys(names.tolist()):
            yield name, np.flatnonzero(names == name)


def seed_of(random_state: Any) -> int:
    return int(check_random_state(random_state).randint(2**31))


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
