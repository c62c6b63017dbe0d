"""The scikit-learn interface: `KernelContinualClassifier`, for arrays, tables and embeddings."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt

from kcl.errors import KclError
from kcl.models.continual_model import ContinualModel

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


class KernelContinualClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """Kernel continual learning as a scikit-learn classifier.

    `fit` learns one task. `partial_fit(X, y, task=…)` learns another at any time, or more samples and new classes of an
    old one. `predict(X, task=…)` predicts for a named task, or one name per row. Without a name, the task is inferred
    from the kernels if there are several. Tasks are distinguished by `str(task)`.

    Parameters
    ----------
    kernel, coreset_size_per_class, bases, ridge_strength, test_draws, width, layers, dropout, batch_size, epochs, lr, \
lr_decay, momentum
        See `kcl list settings`.
    backbone : "identity" or "mlp"
        With "identity" the kernel acts on the input features; "mlp" trains a small network.
    normalise : "standardise", "l2" or "none"
        Scale each feature to zero mean and unit variance, measured on the first data (for tables); scale each sample to
        length one (for embeddings); or neither.
    held_out_share : float
        Share of the samples used to calibrate the probabilities instead of for training.
    random_state : int, RandomState or None
        Fixes all randomness.
    """

    def __init__(
        self,
        kernel: str = "vrf",
        *,
        coreset_size_per_class: int = 20,
        bases: int = 512,
        ridge_strength: float = 0.1,
        test_draws: int = 1,
        backbone: str = "identity",
        width: int = 128,
        layers: int = 1,
        dropout: float = 0.0,
        normalise: str = "standardise",
        batch_size: int = 10,
        epochs: int = 3,
        lr: float = 0.1,
        lr_decay: float = 0.95,
        momentum: float = 0.8,
        held_out_share: float = 0.0,
        random_state: Any = None,
    ) -> None:
        self.kernel = kernel
        self.coreset_size_per_class = coreset_size_per_class
        self.bases = bases
        self.ridge_strength = ridge_strength
        self.test_draws = test_draws
        self.backbone = backbone
        self.width = width
        self.layers = layers
        self.dropout = dropout
        self.normalise = normalise
        self.batch_size = batch_size
        self.epochs = epochs
        self.lr = lr
        self.lr_decay = lr_decay
        self.momentum = momentum
        self.held_out_share = held_out_share
        self.random_state = random_state

    # Learning

    def fit(self, X: Any, y: Any, task: Hashable | None = None) -> KernelContinualClassifier:
        """Discard everything learned so far and learn one task."""
        return self._learn(X, y, None, task, reset=True)

    def partial_fit(
        self, X: Any, y: Any, classes: Any = None, task: Hashable | None = None
    ) -> KernelContinualClassifier:
        """Learn a new task, or more of an old one. Without a name, it is the same task every time.

        `classes`, as elsewhere in scikit-learn, lists labels whose samples may come later.
        """
        return self._learn(X, y, classes, task, reset=not hasattr(self, "model_"))

    def _learn(self, X: Any, y: Any, classes: Any, task: Hashable | None, reset: bool) -> KernelContinualClassifier:
        X, y = validate_data(self, X, y, dtype=np.float32, reset=reset)
        check_classification_targets(y)
        announced = [] if classes is None else list(unique_labels(classes))
        all_classes = unique_labels(y, *([announced] if announced else []), *([] if reset else [self.classes_]))
        with _as_value_error():
            model = self._make() if reset else self.model_
            model.learn(X.copy(), y, ONLY_TASK if task is None else str(task), classes=np.array(announced).tolist())
        self.model_: ContinualModel = model
        self.classes_: npt.NDArray[Any] = all_classes
        return self

    def _make(self) -> ContinualModel:
        if self.backbone not in ("identity", "mlp"):
            raise KclError(f"unknown backbone {self.backbone!r}: use 'identity' (none) or 'mlp'")
        if self.normalise not in NORMS:
            raise KclError(f"unknown normalise {self.normalise!r}: use one of {', '.join(NORMS)}")
        names = ("kernel", "coreset_size_per_class", "bases", "ridge_strength", "test_draws", "backbone", "width",
                 "layers", "dropout", "batch_size", "epochs", "lr", "lr_decay", "momentum")  # fmt: skip
        settings = {name: _python_number(getattr(self, name)) for name in names}
        unscaled = self.backbone == "identity" and self.normalise != "l2"
        return ContinualModel(
            seed=int(check_random_state(self.random_state).randint(2**31)),
            standardise=self.normalise == "standardise",
            held_out_share=float(self.held_out_share),
            feature_norm="none" if unscaled else "l2",
            **settings,
        )

    # Prediction

    @property
    def tasks_(self) -> list[str]:
        """The names of the tasks learned so far."""
        check_is_fitted(self, "model_")
        return list(self.model_.tasks)

    def predict(self, X: Any, task: Any = None) -> npt.NDArray[Any]:
        """The class of each row, among the classes of its task."""
        probabilities = self.predict_proba(X, task)
        return self.classes_[probabilities.argmax(1)]

    def predict_proba(self, X: Any, task: Any = None) -> npt.NDArray[np.float64]:
        """The probability of each of `classes_`; zero for classes outside the row's task."""
        X = self._queries(X)
        probabilities = np.zeros((len(X), len(self.classes_)))
        for name, rows in self._tasks(X, task):
            labels = np.array(self.model_.tasks[name].labels, dtype=self.classes_.dtype)
            of_task = self.model_.probabilities(X[rows], name).double().cpu().numpy()
            columns = np.searchsorted(self.classes_, labels)
            probabilities[np.ix_(rows, columns)] = of_task / of_task.sum(1, keepdims=True)
        return probabilities

    def predict_task(self, X: Any) -> npt.NDArray[Any]:
        """The task inferred for each row."""
        return self.model_.predict(self._queries(X)).task

    def predict_variance(self, X: Any, task: Any = None) -> npt.NDArray[np.float64]:
        """k(x, x) − k_xᵀ(K + λI)⁻¹k_x: near zero close to the task's coreset, large far from it."""
        X = self._queries(X)
        variance = np.zeros(len(X))
        for name, rows in self._tasks(X, task):
            variance[rows] = self.model_.predict(X[rows], name).variance
        return variance

    def score(self, X: Any, y: Any, sample_weight: Any = None, task: Any = None) -> float:
        """Mean accuracy."""
        from sklearn.metrics import accuracy_score

        return float(accuracy_score(y, self.predict(X, task), sample_weight=sample_weight))

    def _queries(self, X: Any) -> npt.NDArray[np.float32]:
        check_is_fitted(self, "model_")
        return np.array(validate_data(self, X, dtype=np.float32, reset=False))

    def _tasks(self, X: npt.NDArray[np.float32], task: Any) -> Iterator[tuple[str, npt.NDArray[np.intp]]]:
        """Task names with the rows that belong to them."""
        if task is None and len(self.model_.tasks) == 1:
            task = next(iter(self.model_.tasks))
        with _as_value_error():
            if task is None:
                names = self.model_.predict(X).task
            elif isinstance(task, Iterable) and not isinstance(task, str):  # a list, an array, a column of a table
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


def _python_number(value: Any) -> Any:
    """NumPy scalars as Python numbers, which settings need."""
    return value.item() if isinstance(value, np.generic) else value


@contextmanager
def _as_value_error() -> Iterator[None]:
    """Raise user errors as ValueError, as scikit-learn's callers expect."""
    try:
        yield
    except KclError as error:
        raise ValueError(str(error)) from None
