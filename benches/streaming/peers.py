"""Streaming classifiers on frozen features, to compare a streaming kernel head with: one small class for each paper.

Every peer learns portions of features and labels, keeps what its paper keeps, and answers among all classes seen. The
last ones keep every sample and are refitted on everything: they say what is possible, not what a stream allows.
`PEERS` names them all. They compute with PyTorch, on a GPU where they are told to; scikit-learn's and river's
classifiers (`OTHERS`) on the CPU, where these packages are installed.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from importlib.util import find_spec
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

Array = np.ndarray
ROWS = 2048
"""Second moments are taken of this many rows at once."""
MOST_AT_ONCE = 40_000
"""Rows of a matrix that is solved as a whole."""
QUERIES = 4096
"""Queries are answered in portions of this many."""


def unit_length(features: Tensor) -> Tensor:
    return features / torch.linalg.vector_norm(features, dim=1, keepdim=True).clamp_min(1e-12)


def squared_distances(a: Tensor, b: Tensor) -> Tensor:
    distances = torch.addmm(b.square().sum(1), a, b.mT, alpha=-2.0)
    return distances.add_(a.square().sum(1)[:, None]).clamp_min_(0.0)


def median_distance(features: Array, unit: bool = False, seed: int = 0, sample: int = 500) -> float:
    """The median distance between some samples, divided by their lengths first if `unit`."""
    rows = torch.from_numpy(features[np.random.default_rng(seed).permutation(len(features))[:sample]]).double()
    distances = torch.pdist(unit_length(rows) if unit else rows)
    return float(distances[distances > 0].median())


class Peer(ABC):
    """A classifier that learns portions. `unit_length`: every sample is divided by its length first."""

    summary: ClassVar[str]
    order_matters: ClassVar[bool] = False
    """Whether the order of the samples changes the result, beyond rounding and the choice of settings."""
    random: ClassVar[bool] = False
    """Whether random numbers change the result."""
    solved_with: ClassVar[tuple[str, ...]] = ()
    """Settings that act when what was learned is solved, and can be changed afterwards."""

    def __init__(self, unit_length: bool = False, seed: int = 0, device: str = "cpu") -> None:
        self.unit_length, self.seed, self.device = unit_length, seed, torch.device(device)
        self.places: dict[int, int] = {}
        self.stale = True

    @property
    def classes(self) -> Array:
        return np.array(list(self.places))

    def learn(self, features: Array, labels: Array) -> None:
        for label in labels.tolist():
            self.places.setdefault(label, len(self.places))
        places = torch.tensor([self.places[label] for label in labels.tolist()], device=self.device)
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
        return np.concatenate([self._scores(self._prepared(portion)).double().cpu().numpy() for portion in portions])

    def predict(self, features: Array) -> Array:
        return self.classes[self.scores(features).argmax(1)]

    def _prepared(self, features: Array) -> Tensor:
        x = torch.from_numpy(np.asarray(features, np.float32)).to(self.device)
        return unit_length(x) if self.unit_length else x

    def targets(self, places: Tensor) -> Tensor:
        """One-hot."""
        return torch.nn.functional.one_hot(places, len(self.places)).double()

    @property
    def state_bytes(self) -> int:
        """What has to be kept in order to go on learning, without what is computed from it."""
        return sum(tensor.numel() * tensor.element_size() for tensor in self._state())

    @abstractmethod
    def _state(self) -> list[Tensor]: ...

    @abstractmethod
    def _learn(self, features: Tensor, places: Tensor) -> None:
        """`places`: the labels as places among `classes`."""

    def _finish(self) -> None:
        return

    @abstractmethod
    def _scores(self, features: Tensor) -> Tensor: ...


class ClassSums:
    """The number of samples and the sum of features of every class, in float64."""

    def __init__(self) -> None:
        self.counts, self.sums = torch.zeros(0, dtype=torch.float64), torch.zeros(0, 0, dtype=torch.float64)

    def add(self, features: Tensor, places: Tensor, classes: int) -> None:
        if len(self.counts) < classes:
            grown = classes - len(self.counts)
            self.counts = torch.cat([self.counts.to(features.device), self.counts.new_zeros(grown).to(features.device)])
            sums = self.sums.reshape(-1, features.shape[1]).to(features.device)
            self.sums = torch.cat([sums, sums.new_zeros(grown, features.shape[1])])
        self.counts += torch.bincount(places, minlength=classes)
        self.sums.index_add_(0, places, features.double())

    @property
    def means(self) -> Tensor:
        return self.sums / self.counts[:, None]


class SecondMoment:
    """Σ xᵀx in the features' data type. Rows wait until there are `ROWS`, because few rows at once are slow to add."""

    def __init__(self) -> None:
        self.matrix: Tensor | None = None
        self.waiting: list[Tensor] = []

    def add(self, features: Tensor) -> None:
        self.waiting.append(features)
        if sum(len(rows) for rows in self.waiting) >= ROWS:
            self.fold()

    def fold(self) -> Tensor:
        """The sum, with the waiting rows in it."""
        if self.waiting:
            rows = torch.cat(self.waiting)
            self.matrix = rows.mT @ rows if self.matrix is None else self.matrix.addmm_(rows.mT, rows)
            self.waiting = []
        assert self.matrix is not None
        return self.matrix


def solved(gram: Tensor, strength: float, right: Tensor) -> Tensor:
    """(G + λI)⁻¹R in float64. λ grows tenfold until the factorisation succeeds."""
    if len(gram) > MOST_AT_ONCE:
        return solved_by_halves(gram, strength, right.double())
    while True:
        regular = gram.double() if gram.dtype != torch.float64 else gram.clone()
        regular.diagonal().add_(strength)
        factor, failed = torch.linalg.cholesky_ex(regular)
        if not int(failed):
            return torch.cholesky_solve(right.double(), factor)
        strength *= 10.0


def solved_by_halves(gram: Tensor, strength: float, right: Tensor) -> Tensor:
    """The same by block elimination: a GPU's solvers count the numbers of a matrix in 32 bits."""
    half = len(gram) // 2
    across = gram[:half, half:].double()
    first = solved(gram[:half, :half], strength, torch.cat([across, right[:half]], 1))
    of_across, of_right = first[:, : across.shape[1]], first[:, across.shape[1] :]
    rest = gram[half:, half:].double().addmm_(across.mT, of_across, alpha=-1.0)
    below = solved(rest, strength, right[half:] - across.mT @ of_right)
    return torch.cat([of_right - of_across @ below, below])


class NearestMean(Peer):
    summary = "nearest class mean"

    def __init__(self, **general: Any) -> None:
        super().__init__(**general)
        self.sums = ClassSums()

    def _state(self) -> list[Tensor]:
        return [self.sums.counts, self.sums.sums]

    def _learn(self, features: Tensor, places: Tensor) -> None:
        self.sums.add(features, places, len(self.places))

    def _scores(self, features: Tensor) -> Tensor:
        return -squared_distances(features.double(), self.sums.means)


class SLDA(Peer):
    """Streaming linear discriminant analysis (Hayes and Kanan, 2020).

    Sample t + 1 with the running mean μ of its class updates Σ ← (tΣ + Δ)/(t + 1), Δ = t/(t + 1)·(x − μ)(x − μ)ᵀ, and
    then μ (their Eq. 2 and 3). W = ΛM and b = −½ diag(MᵀΛM) with Λ = ((1 − ε)Σ + εI)⁻¹. Means begin at zero, as in the
    authors' code. The updates of a portion are done at once: tΣ is the sum of the Δ.
    """

    summary = "SLDA (Hayes and Kanan, 2020)"
    order_matters = True
    solved_with = ("shrinkage",)

    def __init__(self, shrinkage: float = 1e-4, **general: Any) -> None:
        super().__init__(**general)
        self.shrinkage = shrinkage
        self.sums = ClassSums()
        self.scatter, self.updates = torch.zeros(0, 0), 0

    def _state(self) -> list[Tensor]:
        return [self.sums.counts, self.sums.sums, self.scatter]

    def _learn(self, features: Tensor, places: Tensor) -> None:
        features = features.double()
        self.sums.add(features[:0], places[:0], len(self.places))
        differences = torch.empty_like(features)
        for place in places.unique().tolist():
            rows = torch.nonzero(places == place)[:, 0]
            before = features[rows].cumsum(0) - features[rows] + self.sums.sums[place]
            counts = self.sums.counts[place] + torch.arange(len(rows), device=self.device)
            differences[rows] = features[rows] - before / counts.clamp_min(1.0)[:, None]
        steps = self.updates + torch.arange(len(features), device=self.device).double()
        added = (differences * (steps / (steps + 1.0))[:, None]).mT @ differences
        self.scatter = self.scatter + added if self.updates else added
        self.updates += len(features)
        self.sums.add(features, places, len(self.places))

    @property
    def covariance(self) -> Tensor:
        """Σ."""
        return self.scatter / self.updates

    def _finish(self) -> None:
        covariance, means = self.covariance, self.sums.means
        identity = torch.eye(len(covariance), dtype=torch.float64, device=self.device)
        self.precision = torch.linalg.inv((1.0 - self.shrinkage) * covariance + self.shrinkage * identity)
        self.weights = self.precision @ means.mT
        self.bias = -0.5 * (means.mT * self.weights).sum(0)

    def _scores(self, features: Tensor) -> Tensor:
        return features.double() @ self.weights + self.bias

    def distances(self, features: Array) -> Array:
        """The squared Mahalanobis distance to every class mean: (x − μ)ᵀΛ(x − μ)."""
        self.finish()
        prepared = self._prepared(features).double()
        lengths = ((prepared @ self.precision) * prepared).sum(1)
        return (lengths[:, None] - 2.0 * self._scores(prepared)).cpu().numpy()


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

    def __init__(self, bases: int = 10_000, strength: float | None = None, **general: Any) -> None:
        super().__init__(**general)
        self.bases, self.strength = bases, strength
        self.projection: Tensor | None = None
        self.moment, self.sums = SecondMoment(), ClassSums()
        self.newest: tuple[Tensor, Tensor] | None = None

    def _state(self) -> list[Tensor]:
        assert self.projection is not None
        return [self.projection, self.moment.fold(), self.sums.counts, self.sums.sums]

    def projected(self, features: Tensor) -> Tensor:
        """h."""
        if self.projection is None:
            rng = np.random.default_rng(self.seed)
            drawn = rng.standard_normal((features.shape[1], self.bases), np.float32)
            self.projection = torch.from_numpy(drawn).to(self.device)
        return (features @ self.projection).relu_()

    def _learn(self, features: Tensor, places: Tensor) -> None:
        for start in range(0, len(features), ROWS):
            projected = self.projected(features[start : start + ROWS])
            self.moment.add(projected)
            self.sums.add(projected, places[start : start + ROWS], len(self.places))
        self.newest = features, places

    def newest_strength(self) -> float:
        """λ by the paper's rule, in the dual form, which is the same with fewer samples than M."""
        assert self.newest is not None
        features, places = self.newest
        order = torch.from_numpy(np.random.default_rng(self.seed + 1).permutation(len(features))).to(self.device)
        chosen, held = order.tensor_split([int(0.8 * len(order))])
        targets, projected = self.targets(places), self.projected(features).double()
        values, vectors = torch.linalg.eigh(projected[chosen] @ projected[chosen].mT)
        values = values.clamp_min(0.0)
        across = (projected[held] @ projected[chosen].mT) @ vectors
        rotated = vectors.mT @ targets[chosen]
        errors = [
            float((across @ (rotated / (values + strength)[:, None]) - targets[held]).square().mean())
            for strength in self.STRENGTHS
        ]
        return float(self.STRENGTHS[int(np.argmin(errors))])

    def _finish(self) -> None:
        gram = self.moment.fold()
        if self.strength is None:
            self.chosen = self.newest_strength()
        else:
            self.chosen = self.strength * float(gram.trace()) / float(self.sums.counts.sum())
        self.weights = solved(gram, self.chosen, self.sums.sums.mT).float()

    def _scores(self, features: Tensor) -> Tensor:
        return self.projected(features) @ self.weights


class KLDA(Peer):
    """Kernel linear discriminant analysis (Momeni et al., 2025).

    φ(x) = √(2/D) cos(ωx + b) approximates the RBF kernel exp(−‖x − y‖²/(2·width²)); classes share one covariance, the
    scatter around the class means; scores φΣ⁻¹μ − ½μΣ⁻¹μ. Their pseudo-inverse is one of a matrix that may be
    singular: here `shrinkage` times the mean of Σ's diagonal is added to it.
    """

    summary = "KLDA (Momeni et al., 2025)"
    random = True
    solved_with = ("shrinkage",)

    def __init__(self, bases: int = 5000, width: float = 1.0, shrinkage: float = 1e-6, **general: Any) -> None:
        super().__init__(**general)
        self.bases, self.width, self.shrinkage = bases, width, shrinkage
        self.frequencies: Tensor | None = None
        self.moment, self.sums = SecondMoment(), ClassSums()

    def _state(self) -> list[Tensor]:
        assert self.frequencies is not None
        return [self.frequencies, self.phases, self.moment.fold(), self.sums.counts, self.sums.sums]

    def mapped(self, features: Tensor) -> Tensor:
        """φ."""
        if self.frequencies is None:
            rng = np.random.default_rng(self.seed)
            frequencies = rng.standard_normal((features.shape[1], self.bases), np.float32) / np.float32(self.width)
            phases = (2.0 * np.pi * rng.random(self.bases)).astype(np.float32)
            self.frequencies = torch.from_numpy(frequencies).to(self.device)
            self.phases = torch.from_numpy(phases).to(self.device)
        return torch.addmm(self.phases, features, self.frequencies).cos_().mul_(math.sqrt(2.0 / self.bases))

    def _learn(self, features: Tensor, places: Tensor) -> None:
        for start in range(0, len(features), ROWS):
            mapped = self.mapped(features[start : start + ROWS])
            self.moment.add(mapped)
            self.sums.add(mapped, places[start : start + ROWS], len(self.places))

    def _finish(self) -> None:
        means, counts = self.sums.means, self.sums.counts
        scaled = means * counts.sqrt()[:, None]
        scatter = self.moment.fold().double() - scaled.mT @ scaled
        self.weights = solved(scatter, self.shrinkage * float(scatter.trace()) / len(scatter), means.mT)
        # Σ is the scatter over n; a common factor of all scores changes no answer.
        self.bias = -0.5 * (means.mT * self.weights).sum(0)

    def _scores(self, features: Tensor) -> Tensor:
        return self.mapped(features).double() @ self.weights + self.bias


class FeCAM(Peer):
    """Feature covariance-aware metric (Goswami et al., 2023), with a covariance for every class.

    Features of unit length are raised to `power` (Tukey; with their sign, where there are negative ones). Each class
    has Σ + γ₁V₁I + γ₂V₂(1 − I), V₁ and V₂ the mean of Σ's diagonal and of the rest, divided by its own diagonal to a
    correlation matrix. The score is −(x − μ)ᵀΣ⁻¹(x − μ) with x and μ of unit length.
    """

    summary = "FeCAM (Goswami et al., 2023)"
    solved_with = ("diagonal", "rest")

    def __init__(
        self, diagonal: float = 1.0, rest: float = 1.0, power: float = 0.5, unit_length: bool = True, **general: Any
    ) -> None:
        super().__init__(unit_length, **general)
        self.diagonal, self.rest, self.power = diagonal, rest, power
        self.counts: list[int] = []
        self.means: list[Tensor] = []
        self.scatters: list[Tensor] = []

    def _state(self) -> list[Tensor]:
        return [*self.means, *self.scatters]

    def transformed(self, features: Tensor) -> Tensor:
        return features.sign() * features.abs() ** self.power

    def _learn(self, features: Tensor, places: Tensor) -> None:
        features = self.transformed(features)
        for place in places.unique().tolist():
            rows = features[places == place]
            mean = rows.mean(0)
            scatter = (rows - mean).mT @ (rows - mean)
            if place == len(self.counts):
                self.counts.append(len(rows))
                self.means.append(mean)
                self.scatters.append(scatter)
                continue
            before, now = self.counts[place], len(rows)
            apart = mean - self.means[place]
            self.scatters[place] = (
                self.scatters[place] + scatter + before * now / (before + now) * torch.outer(apart, apart)
            )
            self.means[place] = self.means[place] + now / (before + now) * apart
            self.counts[place] = before + now

    def normalised(self, place: int) -> Tensor:
        """The class's matrix, a correlation."""
        covariance = self.scatters[place].double() / max(self.counts[place] - 1, 1)
        dimension = len(covariance)
        on, total = float(covariance.trace()), float(covariance.sum())
        mean_on, mean_off = on / dimension, (total - on) / (dimension * (dimension - 1))
        shrunk = covariance + self.rest * mean_off
        shrunk.diagonal().add_(self.diagonal * mean_on - self.rest * mean_off)
        deviations = shrunk.diagonal().sqrt()
        return shrunk / torch.outer(deviations, deviations)

    def _finish(self) -> None:
        self.inverses = [torch.linalg.inv(self.normalised(place)).float() for place in range(len(self.counts))]

    def _scores(self, features: Tensor) -> Tensor:
        features = unit_length(self.transformed(features))
        scores = features.new_empty(len(features), len(self.counts))
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

    def __init__(self, landmarks: int = 2048, width: float = 1.0, strength: float = 1e-3, **general: Any) -> None:
        super().__init__(**general)
        self.size, self.width, self.strength = landmarks, width, strength
        self.landmarks: Tensor | None = None

    def _state(self) -> list[Tensor]:
        assert self.landmarks is not None
        return [self.landmarks, self.inverse, self.weights]

    def choose_landmarks(self, features: Tensor) -> Tensor:
        rng = np.random.default_rng(self.seed)
        chosen = features.double()[torch.from_numpy(rng.permutation(len(features))[: self.size])]
        if len(chosen) < self.size:
            mixing = rng.standard_normal((self.size - len(chosen), len(chosen)))
            chosen = torch.cat([chosen, torch.from_numpy(mixing / mixing.sum(0)).to(self.device) @ chosen])
        return chosen

    def mapped(self, features: Tensor) -> Tensor:
        """φ."""
        assert self.landmarks is not None
        return squared_distances(features.double(), self.landmarks).mul_(-0.5 / self.width**2).exp_()

    def _learn(self, features: Tensor, places: Tensor) -> None:
        if self.landmarks is None:
            self.landmarks = self.choose_landmarks(features)
            self.inverse = torch.eye(self.size, dtype=torch.float64, device=self.device) / self.strength
            self.weights = self.inverse.new_zeros(self.size, 0)
        new = len(self.places) - self.weights.shape[1]
        self.weights = torch.cat([self.weights, self.weights.new_zeros(self.size, new)], 1)
        for start in range(0, len(features), self.PORTION):
            mapped = self.mapped(features[start : start + self.PORTION])
            targets = self.targets(places[start : start + self.PORTION])
            across = self.inverse @ mapped.mT
            inner = torch.eye(len(mapped), dtype=torch.float64, device=self.device) + mapped @ across
            self.inverse -= across @ torch.linalg.solve(inner, across.mT)
            self.inverse = 0.5 * (self.inverse + self.inverse.mT)
            self.weights = self.weights + self.inverse @ (mapped.mT @ (targets - mapped @ self.weights))

    def _scores(self, features: Tensor) -> Tensor:
        return self.mapped(features) @ self.weights


class SGD(Peer):
    """scikit-learn's `SGDClassifier.partial_fit`, which has to know all classes beforehand: one pass in the order of
    the stream.
    """

    summary = "SGDClassifier.partial_fit (scikit-learn)"
    order_matters = True
    random = True

    def __init__(self, classes: int, alpha: float = 1e-5, **general: Any) -> None:
        super().__init__(**general | {"device": "cpu"})
        from sklearn.linear_model import SGDClassifier

        self.model = SGDClassifier(loss="log_loss", alpha=alpha, average=False, random_state=self.seed)
        self.all = np.arange(classes)

    def _state(self) -> list[Tensor]:
        return [torch.from_numpy(self.model.coef_), torch.from_numpy(self.model.intercept_)]

    def _learn(self, features: Tensor, places: Tensor) -> None:
        self.model.partial_fit(features.numpy(), places.numpy(), classes=self.all)

    def _scores(self, features: Tensor) -> Tensor:
        return torch.from_numpy(self.model.decision_function(features.numpy())[:, : len(self.places)])


class River(Peer):
    """river's `GaussianNB`, its classifier for numbers that needs no step size: `learn_one` with one sample after
    another. A class's variances are its own.
    """

    summary = "GaussianNB.learn_one (river)"

    def __init__(self, **general: Any) -> None:
        super().__init__(**general | {"device": "cpu"})
        from river.naive_bayes import GaussianNB

        self.model = GaussianNB()

    def _state(self) -> list[Tensor]:
        gaussians = [each for by_column in self.model.gaussians.values() for each in by_column.values()]
        return [torch.zeros(3 * len(gaussians), dtype=torch.float64)]  # n, mean and variance of each

    def _learn(self, features: Tensor, places: Tensor) -> None:
        for row, place in zip(features.tolist(), places.tolist(), strict=True):
            self.model.learn_one(dict(enumerate(row)), place)

    def _finish(self) -> None:
        """Its own densities, for all queries and classes at once: `joint_log_likelihood` takes a second for each."""
        classes = range(len(self.places))
        gaussians = [self.model.gaussians[place] for place in classes]
        columns = range(len(gaussians[0]))
        self.means = torch.tensor([[of_class[column].mu for column in columns] for of_class in gaussians])
        self.deviations = torch.tensor([[of_class[column].sigma for column in columns] for of_class in gaussians])
        self.priors = torch.tensor([self.model.p_class(place) for place in classes]).log()

    def _scores(self, features: Tensor) -> Tensor:
        scores = []
        for mean, deviation, prior in zip(self.means, self.deviations, self.priors, strict=True):
            density = torch.distributions.Normal(mean, deviation.clamp_min(1e-6)).log_prob(features)
            scores.append(density.sum(1) + prior)
        return torch.stack(scores, 1)


class Refitted(Peer):
    """Keeps every sample, and is fitted on everything when an answer is wanted."""

    def __init__(self, **general: Any) -> None:
        super().__init__(**general)
        self.features: list[Tensor] = []
        self.labels: list[Tensor] = []

    def _state(self) -> list[Tensor]:
        return [*self.features, *self.labels]

    def _learn(self, features: Tensor, places: Tensor) -> None:
        self.features.append(features)
        self.labels.append(places)

    def _finish(self) -> None:
        self._fit(torch.cat(self.features), torch.cat(self.labels))

    @abstractmethod
    def _fit(self, features: Tensor, places: Tensor) -> None: ...


class Logistic(Refitted):
    """The minimum of Σ −log p(y | x) + penalty/2 ‖W‖², without a penalty for the intercept, by L-BFGS: that of
    scikit-learn's `LogisticRegression(C=1/penalty)`.
    """

    summary = "logistic regression, refitted on everything"

    def __init__(self, penalty: float = 0.1, passes: int = 200, **general: Any) -> None:
        super().__init__(**general)
        self.penalty, self.passes = penalty, passes

    def _fit(self, features: Tensor, places: Tensor) -> None:
        shape = features.shape[1], len(self.places)
        self.weights = torch.zeros(shape, device=self.device, requires_grad=True)
        self.bias = torch.zeros(shape[1], device=self.device, requires_grad=True)
        optimiser = torch.optim.LBFGS(
            [self.weights, self.bias],
            max_iter=self.passes,
            history_size=20,
            line_search_fn="strong_wolfe",
            tolerance_grad=1e-6,
            tolerance_change=1e-10,
        )

        def loss() -> Tensor:
            optimiser.zero_grad()
            likelihood = torch.nn.functional.cross_entropy(features @ self.weights + self.bias, places)
            value = likelihood + 0.5 * self.penalty / len(features) * self.weights.square().sum()
            value.backward()
            return value

        optimiser.step(loss)  # type: ignore[arg-type]

    def _scores(self, features: Tensor) -> Tensor:
        return (features @ self.weights + self.bias).detach()


class KernelMachine(Refitted):
    """Kernel ridge regression with the RBF kernel on everything, α = (K + λI)⁻¹Y."""

    summary = "kernel ridge regression, refitted on everything"
    solved_with = ("width", "strength")

    def __init__(self, width: float = 1.0, strength: float = 0.1, **general: Any) -> None:
        super().__init__(**general)
        self.width, self.strength = width, strength

    def kernel(self, a: Tensor, b: Tensor) -> Tensor:
        return squared_distances(a, b).mul_(-0.5 / self.width**2).exp_()

    def _fit(self, features: Tensor, places: Tensor) -> None:
        self.samples = features
        self.weights = solved(self.kernel(features, features), self.strength, self.targets(places)).float()

    def _scores(self, features: Tensor) -> Tensor:
        return self.kernel(features, self.samples) @ self.weights


PEERS: dict[str, type[Peer]] = {
    "ncm": NearestMean,
    "slda": SLDA,
    "ranpac": RanPAC,
    "klda": KLDA,
    "fecam": FeCAM,
    "gkeal": GKEAL,
    "logistic": Logistic,
    "kernel-machine": KernelMachine,
}
OTHERS: dict[str, type[Peer]] = {"sgd": SGD, "river": River}
"""Peers of other packages."""
PACKAGES = {"sgd": "sklearn", "river": "river"}


def installed(name: str) -> bool:
    return name not in PACKAGES or find_spec(PACKAGES[name]) is not None
