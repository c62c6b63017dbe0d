"""Who learns the streams of `own_data.py`: kcl's models and what a person would take instead, all with their defaults.

Everybody gets the same raw rows (images: bytes for `ContinualModel`, flattened for all others). scikit-learn's models
stand behind a `StandardScaler` that is fitted on the first task and kept, river's behind river's own, which goes on
learning. Where a library wants to know all classes beforehand, it is told; kcl is not.
"""

from __future__ import annotations

import pickle
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.linear_model import LogisticRegression, SGDClassifier
from sklearn.naive_bayes import GaussianNB
from sklearn.neural_network import MLPClassifier
from sklearn.preprocessing import StandardScaler

import kcl
from own_data_sources import Task


class Learner(ABC):
    """One lesson per task; `task` is None where nobody names it."""

    @abstractmethod
    def learn(self, x: np.ndarray, y: np.ndarray, task: str | None) -> None: ...

    @abstractmethod
    def predict(self, x: np.ndarray, task: str | None) -> np.ndarray: ...

    @abstractmethod
    def size(self) -> int:
        """Bytes that have to be kept to go on later."""

    def diverged(self) -> bool:
        """Whether learning had to be repeated more slowly."""
        return False


def flat(x: np.ndarray) -> np.ndarray:
    return x.reshape(len(x), -1).astype(np.float64)


# kcl


class Continual(Learner):
    def __init__(self, seed: int) -> None:
        self.model = kcl.ContinualModel(seed=seed)

    def learn(self, x: np.ndarray, y: np.ndarray, task: str | None) -> None:
        self.model.learn(x, y, task)

    def predict(self, x: np.ndarray, task: str | None) -> np.ndarray:
        prediction = self.model.predict(x, task)
        if not np.isfinite(prediction.confidence).all():
            raise FloatingPointError("a confidence is not finite")
        return prediction.label

    def size(self) -> int:
        return saved_size(self.model)

    def diverged(self) -> bool:
        return any("lr_factor" in lesson for lesson in self.model.history)


class Estimator(Learner):
    def __init__(self, seed: int) -> None:
        self.model = kcl.KernelContinualClassifier(random_state=seed)

    def learn(self, x: np.ndarray, y: np.ndarray, task: str | None) -> None:
        self.model.partial_fit(flat(x), y, task=task)

    def predict(self, x: np.ndarray, task: str | None) -> np.ndarray:
        probabilities = self.model.predict_proba(flat(x), task=task)
        if not np.isfinite(probabilities).all():
            raise FloatingPointError("a probability is not finite")
        return self.model.classes_[probabilities.argmax(1)]

    def size(self) -> int:
        return saved_size(self.model.model_)

    def diverged(self) -> bool:
        return any("lr_factor" in lesson for lesson in self.model.model_.history)


def saved_size(model: kcl.ContinualModel) -> int:
    with tempfile.TemporaryDirectory() as name:
        kcl.save_model(model, Path(name) / "model")
        return sum(path.stat().st_size for path in Path(name).rglob("*") if path.is_file())


# What learns incrementally


class RunningCentroids:
    """The nearest of the classes' running means; scikit-learn's `NearestCentroid` has no `partial_fit`."""

    def __init__(self) -> None:
        self.sums: dict[Any, np.ndarray] = {}
        self.counts: dict[Any, int] = {}

    def partial_fit(self, x: np.ndarray, y: np.ndarray, classes: Sequence[Any]) -> None:  # noqa: ARG002
        for label in np.unique(y):
            rows = x[y == label]
            self.sums[label] = self.sums.get(label, 0.0) + rows.sum(0)
            self.counts[label] = self.counts.get(label, 0) + len(rows)

    def predict(self, x: np.ndarray) -> np.ndarray:
        centres = np.stack([self.sums[label] / self.counts[label] for label in self.sums])
        distances = (centres**2).sum(1) - 2.0 * x @ centres.T
        return np.array(list(self.sums))[distances.argmin(1)]


class Incremental(Learner):
    """`partial_fit` once per lesson, for all tasks together."""

    def __init__(self, model: Any, classes: np.ndarray) -> None:
        self.model, self.classes, self.scaler = model, classes, StandardScaler()

    def learn(self, x: np.ndarray, y: np.ndarray, task: str | None) -> None:  # noqa: ARG002
        if not hasattr(self.scaler, "mean_"):
            self.scaler.fit(flat(x))
        self.model.partial_fit(self.scaler.transform(flat(x)), y, classes=self.classes)

    def predict(self, x: np.ndarray, task: str | None) -> np.ndarray:  # noqa: ARG002
        return self.model.predict(self.scaler.transform(flat(x)))

    def size(self) -> int:
        return len(pickle.dumps((self.model, self.scaler)))


class River(Learner):
    """A classifier of river behind its `StandardScaler`, row by row."""

    def __init__(self, model: Any) -> None:
        from river.preprocessing import StandardScaler as RunningScaler

        self.model, self.first = RunningScaler() | model, None

    def learn(self, x: np.ndarray, y: np.ndarray, task: str | None) -> None:  # noqa: ARG002
        labels = y.tolist()
        self.first = labels[0] if self.first is None else self.first
        for row, label in zip(flat(x).tolist(), labels, strict=True):
            self.model.learn_one(dict(enumerate(row)), label)

    def predict(self, x: np.ndarray, task: str | None) -> np.ndarray:  # noqa: ARG002
        answers = [self.model.predict_one(dict(enumerate(row))) for row in flat(x).tolist()]
        return np.array([self.first if answer is None else answer for answer in answers])

    def size(self) -> int:
        return len(pickle.dumps(self.model))


# What is possible


class Refitted(Learner):
    """Keeps all rows, and is fitted on all of them when it is asked."""

    def __init__(self, make: Callable[[], Any]) -> None:
        self.make, self.model, self.scaler = make, None, StandardScaler()
        self.x, self.y = list[np.ndarray](), list[np.ndarray]()

    def learn(self, x: np.ndarray, y: np.ndarray, task: str | None) -> None:  # noqa: ARG002
        self.x.append(x)
        self.y.append(y)
        self.model = None

    def predict(self, x: np.ndarray, task: str | None) -> np.ndarray:  # noqa: ARG002
        if self.model is None:
            seen = self.scaler.fit_transform(flat(np.concatenate(self.x)))
            self.model = self.make().fit(seen, np.concatenate(self.y))
        return self.model.predict(self.scaler.transform(flat(x)))

    def size(self) -> int:
        return len(pickle.dumps((self.model, self.scaler))) + sum(part.nbytes for part in (*self.x, *self.y))


class PerTask(Learner):
    """A learner of its own for every task: what a person would do with names."""

    def __init__(self, make: Callable[[np.ndarray], Learner]) -> None:
        self.make, self.learners = make, dict[str | None, Learner]()

    def learn(self, x: np.ndarray, y: np.ndarray, task: str | None) -> None:
        self.learners[task] = self.make(np.unique(y))
        self.learners[task].learn(x, y, None)

    def predict(self, x: np.ndarray, task: str | None) -> np.ndarray:
        return self.learners[task].predict(x, None)

    def size(self) -> int:
        return sum(learner.size() for learner in self.learners.values())


# The table


@dataclass(frozen=True)
class Model:
    role: str
    """"kcl", "peer" (learns incrementally) or "refit"."""
    make: Callable[[np.ndarray, int], Learner]
    """From all classes and the seed."""
    packages: tuple[str, ...]
    most_columns: int = 10_000
    most_work: float = 1e12
    """Rows × columns × classes, above which it would take minutes and is left out."""

    def takes(self, tasks: Sequence[Task]) -> bool:
        rows = sum(len(task.train_y) for task in tasks)
        columns = tasks[0].train_x[0].size
        classes = len(np.unique(np.concatenate([task.train_y for task in tasks])))
        return columns <= self.most_columns and rows * columns * classes <= self.most_work


def river(module: str, name: str, most_columns: int, seeded: bool = False) -> Model:
    def make(classes: np.ndarray, seed: int) -> Learner:  # noqa: ARG001
        import importlib

        kind = getattr(importlib.import_module(f"river.{module}"), name)
        return River(kind(seed=seed) if seeded else kind())

    return Model("peer", make, ("river",), most_columns)


def incremental(make: Callable[[int], Any]) -> Model:
    return Model("peer", lambda classes, seed: Incremental(make(seed), classes), ("scikit-learn", "numpy"))


def refitted(make: Callable[[int], Any], most_work: float = 1e12) -> Model:
    return Model("refit", lambda _, seed: Refitted(lambda: make(seed)), ("scikit-learn", "numpy"), most_work=most_work)


MODELS: dict[str, Model] = {
    "ContinualModel": Model("kcl", lambda _, seed: Continual(seed), ("kcl", "torch", "numpy")),
    "KernelContinualClassifier": Model(
        "kcl", lambda _, seed: Estimator(seed), ("kcl", "torch", "numpy"), most_columns=1000
    ),
    "SGDClassifier": incremental(lambda seed: SGDClassifier(random_state=seed)),
    "MLPClassifier": incremental(lambda seed: MLPClassifier(random_state=seed)),
    "GaussianNB": incremental(lambda _: GaussianNB()),
    "nearest centroid": incremental(lambda _: RunningCentroids()),
    "river Hoeffding tree": river("tree", "HoeffdingTreeClassifier", 64),
    "river adaptive forest": river("forest", "ARFClassifier", 20, seeded=True),
    "river neighbours": river("neighbors", "KNNClassifier", 20),
    "river softmax": river("linear_model", "SoftmaxRegression", 64),
    "logistic regression, refitted": refitted(lambda seed: LogisticRegression(random_state=seed)),
    "gradient boosting, refitted": refitted(lambda seed: HistGradientBoostingClassifier(random_state=seed), 1e6),
}
