"""The scikit-learn interface: two classifiers, for arrays, tables and embeddings."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Sequence
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import torch
from sklearn.base import ClassifierMixin
from sklearn.utils.multiclass import check_classification_targets, unique_labels

from kcl.errors import KclError
from kcl.models.continual_model import ContinualModel
from kcl.models.inference import finite
from kcl.models.task_estimator import StreamingEstimator, TaskEstimator, as_value_error, named, python_number
from kcl.models.unknowns import DEFAULT_RATE, DEFAULT_SCORE
from kcl.models.unlearning import Receipt


class TaskClassifier(ClassifierMixin, TaskEstimator):  # type: ignore[misc]
    """What both classifiers share."""

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
        return self._learn(X, y, task, sample_weight, not hasattr(self, "model_"), classes=classes)

    def _learn(self, X: Any, y: Any, task: Hashable | None, sample_weight: Any, reset: bool, **options: Any) -> Self:
        X, y = self._rows(X, y, reset)
        check_classification_targets(y)
        announced = [] if options.get("classes") is None else list(unique_labels(options["classes"]))
        # One known label is enough to refuse others of another kind: with all of thousands it would take long.
        known: Any = [] if reset else self.classes_
        added = unique_labels(*(labels for labels in (y, announced, known[:1]) if len(labels)))
        all_classes = added if reset else np.union1d(known, added)
        self._teach(X, y, task, reset, classes=np.array(announced).tolist(), sample_weight=sample_weight)
        self.classes_: npt.NDArray[Any] = all_classes
        return self

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


class KernelContinualClassifier(TaskClassifier):
    """Kernel continual learning as a scikit-learn classifier.

    `fit` learns one task. `partial_fit(X, y, task=…)` learns another at any time, or more samples and new classes of an
    old one. `predict(X, task=…)` predicts for a named task, or one name per row. Tasks are told apart by `str(task)`.
    If there are several tasks and none is named, all classes are compared at once.

    Without any settings, features are random and frozen, and the classifier is exact (`StreamingKernelClassifier` has
    its settings). Any setting below that is not None asks for a network or kernel that learns, with coresets; those
    left out are then chosen for tables.

    Parameters
    ----------
    kernel, coreset_size_per_class, bases, ridge_strength, test_draws, width, layers, dropout, batch_size, epochs, lr, \
lr_decay, momentum
        See `kcl list settings`.
    backbone : "identity" or "mlp"
        With "identity" the kernel acts on the input features; "mlp" trains a small network.
    normalise : "standardise", "l2" or "none"
        Scale features by the spread of the first data; scale each sample to length one; or neither.
    held_out_share : float in 0 … 0.5
        Share of the samples that tests the model, and is not learned.
    random_state : int, RandomState or None
        Fixes all randomness.
    """

    def __init__(
        self,
        kernel: str | None = None,
        *,
        coreset_size_per_class: int | None = None,
        bases: int | None = None,
        ridge_strength: float | None = None,
        test_draws: int | None = None,
        backbone: str | None = None,
        width: int | None = None,
        layers: int | None = None,
        dropout: float | None = None,
        normalise: str = "standardise",
        batch_size: int | None = None,
        epochs: int | None = None,
        lr: float | None = None,
        lr_decay: float | None = None,
        momentum: float | None = None,
        held_out_share: float = 0.0,
        random_state: Any = None,
    ) -> None:
        self._keep(locals())

    def _make(self) -> ContinualModel:
        others = {"normalise", "held_out_share", "random_state"}
        given = self.get_params(deep=False).items()
        settings = {name: value for name, value in given if name not in others and value is not None}
        if self.backbone not in (None, "identity", "mlp"):
            raise KclError(f"unknown backbone {self.backbone!r}: use 'identity' (none) or 'mlp'")
        streaming, share = not settings, float(self.held_out_share)
        if self.normalise == "l2":
            settings |= {"unit_length": True} if streaming else {"feature_norm": "l2"}
        return self._made(ContinualModel, "streaming" if streaming else "coreset", held_out_share=share, **settings)


class StreamingKernelClassifier(StreamingEstimator, TaskClassifier):
    """Kernel ridge regression on frozen features, learned in any order and any portions, as a scikit-learn classifier.

    No samples are kept: after every `partial_fit` the classifier is the exact batch solution for all samples learned so
    far. Tasks may be named or not; `predict` without a task compares all classes. `forget` is exact too, and
    `kcl.merge` adds up the `model_` of several classifiers with the same features.

    Parameters
    ----------
    features, bases, width, keep, strength_rule, ridge_strength, balanced
        See `kcl list streaming-settings`. Zero means: chosen from the data.
    landmarks : (m, d), optional
        Inputs for `features="nystroem"`.
    frequencies : (D, d), optional
        For `features="vrf"`, as `kcl.posterior_frequencies` draws them.
    normalise : "standardise", "l2" or "none"
        Scale features by the spread of the first data; scale each sample to length one; or neither.
    device : str or torch.device
        Where the model computes; "auto": on a GPU if there is one.
    random_state : int, RandomState or None
        Fixes the random features. Models that are to be merged need the same.
    """

    _kind = ContinualModel

    def __init__(
        self,
        features: str = "rbf",
        *,
        bases: int = 0,
        width: float = 0.0,
        keep: str = "task",
        strength_rule: str = "evidence",
        ridge_strength: float = 0.0,
        balanced: bool = False,
        landmarks: Any = None,
        frequencies: Any = None,
        normalise: str = "standardise",
        device: Any = "cpu",
        random_state: Any = None,
    ) -> None:
        self._keep(locals())

    def reject_unknown(
        self, X: Any, error_rate: float = DEFAULT_RATE, score: str = DEFAULT_SCORE, task: Hashable | None = None
    ) -> Self:
        """Take the threshold of `is_known` from rows that you know to be fine; see `ContinualModel.reject_unknown`.

        Parameters
        ----------
        X : (n, d)
            Rows that were not learned.
        error_rate : float in 0 … 1, by default 0.05
            The share of further rows like them that will be called unknown.
        score : "residual" (default), "response", "mahalanobis" or "variance"
            How well a row is known.
        task : str, optional
            For predictions in this task; by default for those without a task.
        """
        X = self._queries(X)
        with as_value_error():
            self.model_.reject_unknown(X, error_rate, score, named(task))
        return self

    def score_samples(
        self, X: Any, task: Hashable | None = None, score: str = DEFAULT_SCORE
    ) -> npt.NDArray[np.float64]:
        """How well each row is known, (n,), higher is better; `score` as for `reject_unknown`."""
        X = self._queries(X)
        with as_value_error():
            return self.model_.known_scores(X, score, named(task)).cpu().numpy()

    def is_known(self, X: Any, task: Hashable | None = None) -> npt.NDArray[np.bool_]:
        """Which rows are known, (n,), after `reject_unknown`. `predict` names a class for the others too."""
        X = self._queries(X)
        with as_value_error():
            prediction = self.model_.predict(X, named(task))
            if np.isnan(prediction.known).all():
                raise KclError("call reject_unknown with known rows first")
        return np.array([label is not None for label in prediction.label])

    def forget(
        self,
        task: Hashable | None = None,
        classes: Sequence[Any] | None = None,
        samples: tuple[Any, Any] | None = None,
    ) -> Receipt:
        """Forget a task, classes of it, or samples (X, y) that are handed in again; see `ContinualModel.forget`."""
        labels = None if classes is None else [python_number(label) for label in classes]
        receipt = self._forget(task, labels, samples)
        self.classes_ = np.array(sorted(self.model_.labels), dtype=self.classes_.dtype)
        return receipt
