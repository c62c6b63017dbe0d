"""Streaming classifiers on frozen features, to compare a streaming kernel head with: one small class for each paper.

Every peer learns portions of features and labels, keeps what its paper keeps, and answers among all classes seen. The
last three keep every sample and are refitted on everything: they say what is possible, not what a stream allows.
`PEERS` names them all.
"""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from typing import Any, ClassVar

import numpy as np
from scipy import linalg
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression, SGDClassifier

Array = np.ndarray
ROWS = 2048
"""Second moments are taken of this many rows at once."""
QUERIES = 4096
"""Queries are answered in portions of this many."""


def unit_length(features: Array) -> Array:
    return features / np.maximum(np.linalg.norm(features, axis=1, keepdims=True), 1e-12)


def squared_distances(a: Array, b: Array) -> Array:
    distances = (a * a).sum(1)[:, None] - 2.0 * a @ b.T + (b * b).sum(1)
    return np.maximum(distances, 0.0, out=distances)


def median_distance(features: Array, seed: int = 0, sample: int = 500) -> float:
    """The median distance between some samples."""
    rows = features[np.random.default_rng(seed).permutation(len(features))[:sample]]
    distances = squared_distances(rows, rows)[np.triu_indices(len(rows), 1)]
    return float(np.sqrt(np.median(distances[distances > 0])))


class Peer(ABC):
    """A classifier that learns portions. `unit_length`: every sample is divided by its length first."""

    summary: ClassVar[str]
    order_matters: ClassVar[bool] = False
    """Whether the order of the samples changes the result, beyond rounding and the choice of settings."""
    random: ClassVar[bool] = False
    """Whether random numbers change the result."""
    solved_with: ClassVar[tuple[str, ...]] = ()
    """Settings that act when what was learned is solved, and can be changed afterwards."""

    def __init__(self, unit_length: bool = False, seed: int = 0) -> None:
        self.unit_length, self.seed = unit_length, seed
        self.places: dict[int, int] = {}
        self.stale = True

    @property
    def classes(self) -> Array:
        return np.array(list(self.places))

    def learn(self, features: Array, labels: Array) -> None:
        for label in labels.tolist():
            self.places.setdefault(label, len(self.places))
        places = np.array([self.places[label] for label in labels.tolist()])
        self._learn(self._prepared(features), places)
        self.stale = True

    def finish(self) -> None:
        """Solve what was learned, where that is done once and not with every portion."""
        if self.stale:
            self._finish()
            self.stale = False

    def solve_with(self, **settings: Any) -> None:
        """Change settings of `solved_with`."""
        for name, value in settings.items():
            setattr(self, name, value)
        self.stale = True

    def scores(self, features: Array) -> Array:
        """A score for every class in the order of `classes`, higher is better."""
        self.finish()
        portions = np.split(features, range(QUERIES, len(features), QUERIES))
        return np.concatenate([self._scores(self._prepared(portion)) for portion in portions])

    def predict(self, features: Array) -> Array:
        return self.classes[self.scores(features).argmax(1)]

    def _prepared(self, features: Array) -> Array:
        features = np.asarray(features, np.float32)
        return unit_length(features) if self.unit_length else features

    @property
    def state_bytes(self) -> int:
        """What has to be kept in order to go on learning, without what is computed from it."""
        return sum(array.nbytes for array in self._state())

    @abstractmethod
    def _state(self) -> list[Array]: ...

    @abstractmethod
    def _learn(self, features: Array, places: Array) -> None:
        """`places`: the labels as places among `classes`."""

    def _finish(self) -> None:
        return

    @abstractmethod
    def _scores(self, features: Array) -> Array: ...


class ClassSums:
    """The number of samples and the sum of features of every class, in float64."""

    def __init__(self) -> None:
        self.counts, self.sums = np.zeros(0), np.zeros((0, 0))

    def add(self, features: Array, places: Array, classes: int) -> None:
        if len(self.counts) < classes:
            grown = classes - len(self.counts)
            self.counts = np.append(self.counts, np.zeros(grown))
            sums = self.sums.reshape(-1, features.shape[1])
            self.sums = np.concatenate([sums, np.zeros((grown, features.shape[1]))])
        for place in np.unique(places):
            rows = features[places == place]
            self.counts[place] += len(rows)
            self.sums[place] += rows.sum(0, dtype=np.float64)

    @property
    def means(self) -> Array:
        return self.sums / self.counts[:, None]


class SecondMoment:
    """Σ xᵀx in the features' data type. Rows wait until there are `ROWS`, because few rows at once are slow to add."""

    def __init__(self) -> None:
        self.matrix = np.zeros((0, 0))
        self.waiting: list[Array] = []

    def add(self, features: Array) -> None:
        self.waiting.append(features)
        if sum(len(rows) for rows in self.waiting) >= ROWS:
            self.fold()

    def fold(self) -> Array:
        """The sum, with the waiting rows in it."""
        if self.waiting:
            rows = np.concatenate(self.waiting)
            product = rows.T @ rows
            if self.matrix.size:
                self.matrix += product
            else:
                self.matrix = product
            self.waiting = []
        return self.matrix

    @property
    def nbytes(self) -> int:
        return self.fold().nbytes


class NearestMean(Peer):
    summary = "nearest class mean"

    def __init__(self, unit_length: bool = False, seed: int = 0) -> None:
        super().__init__(unit_length, seed)
        self.sums = ClassSums()

    def _state(self) -> list[Array]:
        return [self.sums.counts, self.sums.sums]

    def _learn(self, features: Array, places: Array) -> None:
        self.sums.add(features, places, len(self.places))

    def _scores(self, features: Array) -> Array:
        return -squared_distances(features.astype(np.float64), self.sums.means)


class SLDA(Peer):
    """Streaming linear discriminant analysis (Hayes and Kanan, 2020).

    Sample t + 1 with the running mean μ of its class updates Σ ← (tΣ + Δ)/(t + 1), Δ = t/(t + 1)·(x − μ)(x − μ)ᵀ, and
    then μ (their Eq. 2 and 3). W = ΛM and b = −½ diag(MᵀΛM) with Λ = ((1 − ε)Σ + εI)⁻¹. Means begin at zero, as in the
    authors' code. The updates of a portion are done at once: tΣ is the sum of the Δ.
    """

    summary = "SLDA (Hayes and Kanan, 2020)"
    order_matters = True

    def __init__(self, shrinkage: float = 1e-4, unit_length: bool = False, seed: int = 0) -> None:
        super().__init__(unit_length, seed)
        self.shrinkage = shrinkage
        self.sums = ClassSums()
        self.scatter, self.updates = np.zeros((0, 0)), 0

    def _state(self) -> list[Array]:
        return [self.sums.counts, self.sums.sums, self.scatter]

    def _learn(self, features: Array, places: Array) -> None:
        features = features.astype(np.float64)
        dimension = features.shape[1]
        self.sums.add(features[:0], places[:0], len(self.places))
        differences = np.empty_like(features)
        for place in np.unique(places):
            rows = np.flatnonzero(places == place)
            before = np.cumsum(features[rows], 0) - features[rows] + self.sums.sums[place]
            counts = self.sums.counts[place] + np.arange(len(rows))
            differences[rows] = features[rows] - before / np.maximum(counts, 1.0)[:, None]
        steps = self.updates + np.arange(len(features))
        scatter = self.scatter if self.updates else np.zeros((dimension, dimension))
        self.scatter = scatter + (differences * (steps / (steps + 1.0))[:, None]).T @ differences
        self.updates += len(features)
        self.sums.add(features, places, len(self.places))

    @property
    def covariance(self) -> Array:
        """Σ."""
        return self.scatter / self.updates

    def _finish(self) -> None:
        shrunk = (1.0 - self.shrinkage) * self.covariance + self.shrinkage * np.eye(len(self.scatter))
        means = self.sums.means
        self.weights = linalg.solve(shrunk, means.T, assume_a="pos")
        self.bias = -0.5 * (means.T * self.weights).sum(0)
        self.precision = linalg.inv(shrunk)

    def _scores(self, features: Array) -> Array:
        return features @ self.weights + self.bias

    def distances(self, features: Array) -> Array:
        """The squared Mahalanobis distance to every class mean: (x − μ)ᵀΛ(x − μ)."""
        prepared = self._prepared(features).astype(np.float64)
        return ((prepared @ self.precision) * prepared).sum(1)[:, None] - 2.0 * self.scores(features)


class RanPAC(Peer):
    """Random projections and class prototypes without correlation (McDonnell et al., 2023), without their adapters.

    h = max(0, xW) with W ~ N(0, 1) of M columns; G = Σ hᵀh, C = Σ hᵀy, and scores h(G + λI)⁻¹C. λ is the one of
    10⁻⁸ … 10⁸ that, solved from four fifths of the newest task's samples alone, has the smallest squared error on the
    last fifth. With `strength`, λ is that many times the mean of ‖h‖² instead.
    """

    summary = "RanPAC (McDonnell et al., 2023)"
    random = True
    solved_with = ("strength",)
    STRENGTHS = 10.0 ** np.arange(-8, 9)

    def __init__(
        self, bases: int = 10_000, strength: float | None = None, unit_length: bool = False, seed: int = 0
    ) -> None:
        super().__init__(unit_length, seed)
        self.bases, self.strength = bases, strength
        self.projection: Array | None = None
        self.moment, self.sums = SecondMoment(), ClassSums()
        self.newest: tuple[Array, Array] | None = None

    def _state(self) -> list[Array]:
        assert self.projection is not None
        return [self.projection, self.moment.fold(), self.sums.counts, self.sums.sums]

    def projected(self, features: Array) -> Array:
        """h."""
        if self.projection is None:
            rng = np.random.default_rng(self.seed)
            self.projection = rng.standard_normal((features.shape[1], self.bases), np.float32)
        product = features @ self.projection
        return np.maximum(product, 0.0, out=product)

    def _learn(self, features: Array, places: Array) -> None:
        for start in range(0, len(features), ROWS):
            projected = self.projected(features[start : start + ROWS])
            self.moment.add(projected)
            self.sums.add(projected, places[start : start + ROWS], len(self.places))
        self.newest = features, places

    def newest_strength(self) -> float:
        """λ by the paper's rule, in the dual form, which is the same with fewer samples than M."""
        assert self.newest is not None
        features, places = self.newest
        order = np.random.default_rng(self.seed + 1).permutation(len(features))
        chosen, held = np.split(order, [int(0.8 * len(order))])
        targets = np.eye(len(self.places))[places]
        projected = self.projected(features)
        values, vectors = linalg.eigh((projected[chosen] @ projected[chosen].T).astype(np.float64))
        values = np.maximum(values, 0.0)
        across = (projected[held] @ projected[chosen].T) @ vectors
        rotated = vectors.T @ targets[chosen]
        errors = [
            ((across @ (rotated / (values + strength)[:, None]) - targets[held]) ** 2).mean()
            for strength in self.STRENGTHS
        ]
        return float(self.STRENGTHS[int(np.argmin(errors))])

    def _finish(self) -> None:
        gram = self.moment.fold()
        if self.strength is None:
            self.chosen = self.newest_strength()
        else:
            self.chosen = self.strength * float(np.trace(gram)) / float(self.sums.counts.sum())
        self.weights = solved(gram, self.chosen, self.sums.sums.T)

    def _scores(self, features: Array) -> Array:
        return self.projected(features) @ self.weights


def solved(gram: Array, strength: float, right: Array) -> Array:
    """(G + λI)⁻¹R. λ grows tenfold until the factorisation succeeds in the data type of G."""
    while True:
        regular = gram.copy()
        regular[np.diag_indices_from(regular)] += strength
        try:
            factor = linalg.cho_factor(regular, overwrite_a=True, check_finite=False)
        except linalg.LinAlgError:
            strength *= 10.0
            continue
        return linalg.cho_solve(factor, right.astype(gram.dtype), check_finite=False)


class KLDA(Peer):
    """Kernel linear discriminant analysis (Momeni et al., 2025).

    φ(x) = √(2/D) cos(ωx + b) approximates the RBF kernel exp(−‖x − y‖²/(2·width²)); classes share one covariance, the
    scatter around the class means; scores φΣ⁻¹μ − ½μΣ⁻¹μ. Their pseudo-inverse is one of a matrix that may be
    singular: here `shrinkage` times the mean of Σ's diagonal is added to it.
    """

    summary = "KLDA (Momeni et al., 2025)"
    random = True
    solved_with = ("shrinkage",)

    def __init__(
        self,
        bases: int = 5000,
        width: float = 1.0,
        shrinkage: float = 1e-6,
        unit_length: bool = False,
        seed: int = 0,
    ) -> None:
        super().__init__(unit_length, seed)
        self.bases, self.width, self.shrinkage = bases, width, shrinkage
        self.frequencies: Array | None = None
        self.moment, self.sums = SecondMoment(), ClassSums()

    def _state(self) -> list[Array]:
        assert self.frequencies is not None
        return [self.frequencies, self.phases, self.moment.fold(), self.sums.counts, self.sums.sums]

    def mapped(self, features: Array) -> Array:
        """φ."""
        if self.frequencies is None:
            rng = np.random.default_rng(self.seed)
            frequencies = rng.standard_normal((features.shape[1], self.bases), np.float32)
            self.frequencies = frequencies / np.float32(self.width)
            self.phases = (2.0 * np.pi * rng.random(self.bases)).astype(np.float32)
        angles = features @ self.frequencies + self.phases
        return np.float32(np.sqrt(2.0 / self.bases)) * np.cos(angles, out=angles)

    def _learn(self, features: Array, places: Array) -> None:
        for start in range(0, len(features), ROWS):
            mapped = self.mapped(features[start : start + ROWS])
            self.moment.add(mapped)
            self.sums.add(mapped, places[start : start + ROWS], len(self.places))

    def _finish(self) -> None:
        means, counts = self.sums.means, self.sums.counts
        scaled = (means * np.sqrt(counts)[:, None]).astype(np.float32)
        scatter = self.moment.fold() - scaled.T @ scaled
        self.weights = solved(scatter, self.shrinkage * float(np.trace(scatter)) / len(scatter), means.T)
        # Σ is the scatter over n; a common factor of all scores changes no answer.
        self.bias = -0.5 * (means.T * self.weights).sum(0)

    def _scores(self, features: Array) -> Array:
        return self.mapped(features) @ self.weights + self.bias


class FeCAM(Peer):
    """Feature covariance-aware metric (Goswami et al., 2023), with a covariance for every class.

    Features of unit length are raised to `power` (Tukey; with their sign, where there are negative ones). Each class
    has Σ + γ₁V₁I + γ₂V₂(1 − I), V₁ and V₂ the mean of Σ's diagonal and of the rest, divided by its own diagonal to a
    correlation matrix. The score is −(x − μ)ᵀΣ⁻¹(x − μ) with x and μ of unit length.
    """

    summary = "FeCAM (Goswami et al., 2023)"
    solved_with = ("diagonal", "rest")

    def __init__(
        self, diagonal: float = 1.0, rest: float = 1.0, power: float = 0.5, unit_length: bool = True, seed: int = 0
    ) -> None:
        super().__init__(unit_length, seed)
        self.diagonal, self.rest, self.power = diagonal, rest, power
        self.counts: list[int] = []
        self.means: list[Array] = []
        self.scatters: list[Array] = []

    def _state(self) -> list[Array]:
        return [*self.means, *self.scatters]

    def transformed(self, features: Array) -> Array:
        return np.sign(features) * np.abs(features) ** np.float32(self.power)

    def _learn(self, features: Array, places: Array) -> None:
        features = self.transformed(features)
        for place in sorted(set(places.tolist())):
            rows = features[places == place]
            mean = rows.mean(0)
            scatter = (rows - mean).T @ (rows - mean)
            if place == len(self.counts):
                self.counts.append(len(rows))
                self.means.append(mean)
                self.scatters.append(scatter)
                continue
            before, now = self.counts[place], len(rows)
            apart = (mean - self.means[place]).astype(np.float32)
            self.scatters[place] = (
                self.scatters[place] + scatter + before * now / (before + now) * np.outer(apart, apart)
            )
            self.means[place] = self.means[place] + now / (before + now) * apart
            self.counts[place] = before + now

    def normalised(self, place: int) -> Array:
        """The class's matrix, a correlation."""
        covariance = self.scatters[place] / max(self.counts[place] - 1, 1)
        dimension = len(covariance)
        on, total = float(np.trace(covariance)), float(covariance.sum(dtype=np.float64))
        mean_on, mean_off = on / dimension, (total - on) / (dimension * (dimension - 1))
        shrunk = covariance + self.rest * mean_off
        shrunk[np.diag_indices(dimension)] += self.diagonal * mean_on - self.rest * mean_off
        deviations = np.sqrt(np.diagonal(shrunk))
        return shrunk / np.outer(deviations, deviations)

    def _finish(self) -> None:
        self.inverses = [linalg.inv(self.normalised(place)) for place in range(len(self.counts))]

    def _scores(self, features: Array) -> Array:
        features = unit_length(self.transformed(features))
        scores = np.empty((len(features), len(self.counts)))
        for place, inverse in enumerate(self.inverses):
            differences = features - unit_length(self.means[place][None])
            scores[:, place] = -((differences @ inverse) * differences).sum(1)
        return scores


class GKEAL(Peer):
    """Gaussian kernel embedded analytic learning (Zhuang et al., 2023), without their augmentation.

    φ(x) = exp(−‖x − c‖²/(2·width²)) for landmarks c from the first task; where it has too few samples, the rest are
    random mixtures of them, as in the authors' code. R = (Σ φᵀφ + γI)⁻¹ and the weights follow recursively:
    R ← R − Rφᵀ(I + φRφᵀ)⁻¹φR, W ← W + Rφᵀ(y − φW).
    """

    summary = "GKEAL (Zhuang et al., 2023)"
    order_matters = True
    random = True
    PORTION = 500

    def __init__(
        self,
        landmarks: int = 2048,
        width: float = 1.0,
        strength: float = 1e-3,
        unit_length: bool = False,
        seed: int = 0,
    ) -> None:
        super().__init__(unit_length, seed)
        self.size, self.width, self.strength = landmarks, width, strength
        self.landmarks: Array | None = None

    def _state(self) -> list[Array]:
        assert self.landmarks is not None
        return [self.landmarks, self.inverse, self.weights]

    def choose_landmarks(self, features: Array) -> Array:
        rng = np.random.default_rng(self.seed)
        chosen = features[rng.permutation(len(features))[: self.size]]
        if len(chosen) < self.size:
            mixing = rng.standard_normal((self.size - len(chosen), len(chosen)))
            chosen = np.concatenate([chosen, (mixing / mixing.sum(0)) @ chosen])
        return chosen.astype(np.float64)

    def mapped(self, features: Array) -> Array:
        """φ."""
        assert self.landmarks is not None
        return np.exp(-squared_distances(features.astype(np.float64), self.landmarks) / (2.0 * self.width**2))

    def _learn(self, features: Array, places: Array) -> None:
        if self.landmarks is None:
            self.landmarks = self.choose_landmarks(features)
            self.inverse = np.eye(self.size) / self.strength
            self.weights = np.zeros((self.size, 0))
        new = len(self.places) - self.weights.shape[1]
        self.weights = np.concatenate([self.weights, np.zeros((self.size, new))], 1)
        for start in range(0, len(features), self.PORTION):
            mapped = self.mapped(features[start : start + self.PORTION])
            targets = np.eye(len(self.places))[places[start : start + self.PORTION]]
            across = self.inverse @ mapped.T
            inner = np.eye(len(mapped)) + mapped @ across
            self.inverse -= across @ linalg.solve(inner, across.T, assume_a="pos")
            self.inverse = 0.5 * (self.inverse + self.inverse.T)
            self.weights += self.inverse @ (mapped.T @ (targets - mapped @ self.weights))

    def _scores(self, features: Array) -> Array:
        return self.mapped(features) @ self.weights


class SGD(Peer):
    """scikit-learn's `SGDClassifier.partial_fit`, which has to know all classes beforehand: one pass in the order of
    the stream.
    """

    summary = "SGDClassifier.partial_fit (scikit-learn)"
    order_matters = True
    random = True

    def __init__(self, classes: int, alpha: float = 1e-5, unit_length: bool = False, seed: int = 0) -> None:
        super().__init__(unit_length, seed)
        self.model = SGDClassifier(loss="log_loss", alpha=alpha, average=False, random_state=seed)
        self.all = np.arange(classes)

    def _state(self) -> list[Array]:
        return [self.model.coef_, self.model.intercept_]

    def _learn(self, features: Array, places: Array) -> None:
        self.model.partial_fit(features, places, classes=self.all)

    def _scores(self, features: Array) -> Array:
        return self.model.decision_function(features)[:, : len(self.places)]


class Refitted(Peer):
    """Keeps every sample, and is fitted on everything when an answer is wanted."""

    def __init__(self, unit_length: bool = False, seed: int = 0) -> None:
        super().__init__(unit_length, seed)
        self.features: list[Array] = []
        self.labels: list[Array] = []

    def _state(self) -> list[Array]:
        return [*self.features, *self.labels]

    def _learn(self, features: Array, places: Array) -> None:
        self.features.append(features)
        self.labels.append(places)

    def _finish(self) -> None:
        self._fit(np.concatenate(self.features), np.concatenate(self.labels))

    @abstractmethod
    def _fit(self, features: Array, places: Array) -> None: ...


class Logistic(Refitted):
    summary = "logistic regression, refitted on everything"

    def __init__(self, penalty: float = 0.1, passes: int = 100, unit_length: bool = False, seed: int = 0) -> None:
        super().__init__(unit_length, seed)
        self.model: Any = LogisticRegression(C=1.0 / penalty, max_iter=passes)

    def _fit(self, features: Array, places: Array) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            self.model.fit(features, places)

    def _scores(self, features: Array) -> Array:
        return features @ self.model.coef_.T + self.model.intercept_ if len(self.places) > 2 else self._two(features)

    def _two(self, features: Array) -> Array:
        """Of two classes the model has the second one's score only."""
        second = self.model.decision_function(features)
        return np.stack([-second, second], 1)


class KernelMachine(Refitted):
    """Kernel ridge regression with the RBF kernel on everything, α = (K + λI)⁻¹Y. With more than `largest` samples, on
    that many random ones of them as landmarks (Nyström), all samples being learned.
    """

    summary = "kernel ridge regression, refitted on everything"

    def __init__(
        self,
        width: float = 1.0,
        strength: float = 0.1,
        largest: int = 26_000,
        landmarks: int = 8192,
        unit_length: bool = False,
        seed: int = 0,
    ) -> None:
        super().__init__(unit_length, seed)
        self.width, self.strength, self.largest, self.count = width, strength, largest, landmarks

    def kernel(self, a: Array, b: Array) -> Array:
        distances = squared_distances(a, b)
        distances *= np.float32(-0.5 / self.width**2)
        return np.exp(distances, out=distances)

    def _fit(self, features: Array, places: Array) -> None:
        targets = np.eye(len(self.places), dtype=np.float32)[places]
        if len(features) <= self.largest:
            self.landmarks = features
            self.weights = solved(self.kernel(features, features), self.strength, targets)
            return
        order = np.random.default_rng(self.seed).permutation(len(features))
        self.landmarks = features[order[: self.count]]
        gram, cross = SecondMoment(), np.zeros((self.count, targets.shape[1]))
        for start in range(0, len(features), ROWS):
            mapped = self.kernel(features[start : start + ROWS], self.landmarks)
            gram.add(mapped)
            cross += mapped.T @ targets[start : start + ROWS]
        # ‖f‖² = wᵀK(L, L)w. Rounding of float32 asks for a little of the identity.
        inner = gram.fold() + self.strength * self.kernel(self.landmarks, self.landmarks)
        self.weights = solved(inner, 1e-6 * float(np.trace(inner)) / len(inner), cross)

    def _scores(self, features: Array) -> Array:
        return self.kernel(features, self.landmarks) @ self.weights


PEERS: dict[str, type[Peer]] = {
    "ncm": NearestMean,
    "slda": SLDA,
    "ranpac": RanPAC,
    "klda": KLDA,
    "fecam": FeCAM,
    "gkeal": GKEAL,
    "sgd": SGD,
    "logistic": Logistic,
    "kernel-machine": KernelMachine,
}
