"""The scikit-learn interface: two classifiers, for arrays, tables and embeddings."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from kcl.errors import KclError
from kcl.models.continual_model import ContinualModel
from kcl.models.streaming_heads import StreamingSettings
from kcl.models.task_classifier import NORMS, TaskClassifier, as_value_error, python_number, seed_of
from kcl.models.unknowns import DEFAULT_RATE, DEFAULT_SCORE
from kcl.models.unlearning import Receipt

STREAMING = StreamingSettings.names()


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

    def _make(self) -> ContinualModel:
        options = {"normalise", "held_out_share", "random_state"}
        given = {name: value for name, value in self.get_params(deep=False).items() if name not in options}
        settings = {name: python_number(value) for name, value in given.items() if value is not None}
        if self.backbone not in (None, "identity", "mlp"):
            raise KclError(f"unknown backbone {self.backbone!r}: use 'identity' (none) or 'mlp'")
        if self.normalise not in NORMS:
            raise KclError(f"unknown normalise {self.normalise!r}: use one of {', '.join(NORMS)}")
        streaming, by_length = not settings, self.normalise == "l2"
        if by_length:
            settings |= {"unit_length": True} if streaming else {"feature_norm": "l2"}
        return ContinualModel(
            seed=seed_of(self.random_state),
            standardise=self.normalise == "standardise",
            held_out_share=float(self.held_out_share),
            head="streaming" if streaming else "coreset",
            **settings,
        )


class StreamingKernelClassifier(TaskClassifier):
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
    random_state : int, RandomState or None
        Fixes the random features. Models that are to be merged need the same.
    """

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
        random_state: Any = None,
    ) -> None:
        self.features = features
        self.bases = bases
        self.width = width
        self.keep = keep
        self.strength_rule = strength_rule
        self.ridge_strength = ridge_strength
        self.balanced = balanced
        self.landmarks = landmarks
        self.frequencies = frequencies
        self.normalise = normalise
        self.random_state = random_state

    def _make(self) -> ContinualModel:
        if self.normalise not in NORMS:
            raise KclError(f"unknown normalise {self.normalise!r}: use one of {', '.join(NORMS)}")
        settings = {name: python_number(getattr(self, name)) for name in STREAMING if name != "unit_length"}
        return ContinualModel(
            seed=seed_of(self.random_state),
            standardise=self.normalise == "standardise",
            head="streaming",
            unit_length=self.normalise == "l2",
            landmarks=self.landmarks,
            frequencies=self.frequencies,
            **settings,
        )

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
        score : "mahalanobis" (default), "response" or "variance"
            How well a row is known.
        task : str, optional
            For predictions in this task; by default for those without a task.
        """
        X = self._queries(X)
        with as_value_error():
            self.model_.reject_unknown(X, error_rate, score, None if task is None else str(task))
        return self

    def score_samples(
        self, X: Any, task: Hashable | None = None, score: str = DEFAULT_SCORE
    ) -> npt.NDArray[np.float64]:
        """How well each row is known, (n,), higher is better; `score` as for `reject_unknown`."""
        X = self._queries(X)
        with as_value_error():
            return self.model_.known_scores(X, score, None if task is None else str(task)).cpu().numpy()

    def is_known(self, X: Any, task: Hashable | None = None) -> npt.NDArray[np.bool_]:
        """Which rows are known, (n,), after `reject_unknown`. `predict` names a class for the others too."""
        X = self._queries(X)
        with as_value_error():
            prediction = self.model_.predict(X, None if task is None else str(task))
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
        model = self._learned()
        if samples is not None:
            samples = self._queries(samples[0]), np.asarray(samples[1])
        with as_value_error():
            receipt = model.forget(
                None if task is None else str(task),
                None if classes is None else [python_number(label) for label in classes],
                samples,
            )
        self.classes_ = np.array(sorted(self.model_.labels), dtype=self.classes_.dtype)
        return receipt
