"""Ridge regression from sufficient statistics: exact, in any order and any portions, without stored samples.

min_W Σ_i ‖y_i − ψ_iW‖² + λ‖W‖² depends on the samples through G = Σ ψᵀψ, C = Σ ψᵀy and Σ y² alone, and all three are
sums. Adding statistics is learning, subtracting them is forgetting, and W = (G + λI)⁻¹C is the batch solution whatever
the order (Eq. 1 of the paper in its primal form, over all samples instead of a coreset).

The same sums give λ without held-out data: one eigendecomposition of G serves every λ, for the solution, for the
evidence of the Gaussian process whose posterior mean the solution is, and for generalised cross-validation.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from kcl.core.shapes import Float, Shaped

SMALLEST, LARGEST = 1e-8, 1e4
"""Bounds of λ, relative to the mean of ‖ψ‖²."""
GRID = 25
REFINEMENTS = 20


@dataclass(frozen=True)
class SecondMoment:
    """G = Σ ψᵀψ: as rows R with G = RᵀR while there are fewer than D of them, which is smaller and quicker to solve; as
    the D × D matrix from then on, of which only the upper triangle is used.
    """

    rows: Float[Tensor, "k D"] | None = None
    matrix: Float[Tensor, "D D"] | None = None

    @property
    def tensor(self) -> Float[Tensor, "k D"]:
        kept = self.matrix if self.rows is None else self.rows
        assert kept is not None  # noqa: S101 - one of the two is always there
        return kept

    @property
    def trace(self) -> float:
        """Σ ‖ψ‖²."""
        return float(self.tensor.diagonal().sum() if self.rows is None else self.tensor.square().sum())

    def dense(self) -> Float[Tensor, "D D"]:
        return self.tensor if self.rows is None else self.rows.mT @ self.rows

    def scaled(self, factor: float) -> SecondMoment:
        if self.rows is None:
            return SecondMoment(matrix=factor * self.tensor)
        return SecondMoment(rows=math.sqrt(factor) * self.rows)


def add_moments(parts: Sequence[SecondMoment]) -> SecondMoment:
    """The sum of at least one."""
    rows = [part.rows for part in parts if part.rows is not None]
    matrices = [part.matrix for part in parts if part.matrix is not None]
    dimension = parts[0].tensor.shape[1]
    joined = torch.cat(rows) if rows else parts[0].tensor[:0]
    if not matrices and len(joined) < dimension:
        return SecondMoment(rows=joined)
    if not matrices:
        return SecondMoment(matrix=joined.mT @ joined)
    # One pass over D² numbers: a lesson of a few samples costs little else.
    total = torch.addmm(matrices[0], joined.mT, joined)
    for matrix in matrices[1:]:
        total += matrix
    return SecondMoment(matrix=total)


@dataclass(frozen=True)
class Statistics:
    """What ridge regression needs of n weighted samples with features ψ (D) and targets y (c)."""

    moment: SecondMoment
    cross: Float[Tensor, "D c"]
    """C = Σ ψᵀy."""
    sums: Float[Tensor, " c"]
    """Σ y: how many samples each class has, where targets are one-hot."""
    squares: Float[Tensor, " c"]
    """Σ y²."""
    count: float
    """n: the sum of the sample weights."""

    @property
    def targets(self) -> int:
        return self.cross.shape[1]

    def placed(self, places: Sequence[int], targets: int) -> Statistics:
        """The same samples with target j at `places[j]` of a longer list. Targets that share a place are added up, as
        one-hot targets are when classes are joined.
        """
        index = torch.tensor(list(places), dtype=torch.int64, device=self.cross.device)

        def spread(tensor: Tensor) -> Tensor:
            return tensor.new_zeros(*tensor.shape[:-1], targets).index_add_(-1, index, tensor)

        return Statistics(self.moment, spread(self.cross), spread(self.sums), spread(self.squares), self.count)

    def columns(self, kept: Sequence[int]) -> Statistics:
        """Without the targets that are not among `kept`, of which all samples are gone."""
        index = torch.tensor(list(kept), dtype=torch.int64, device=self.cross.device)
        cross, sums, squares = (part.index_select(-1, index) for part in (self.cross, self.sums, self.squares))
        return Statistics(self.moment, cross, sums, squares, self.count)

    def scaled(self, factor: float) -> Statistics:
        """As if every sample had been learned `factor` times."""
        return Statistics(
            self.moment.scaled(factor),
            factor * self.cross,
            factor * self.sums,
            factor * self.squares,
            factor * self.count,
        )


def of_samples(
    features: Float[Tensor, "n D"], targets: Shaped[Tensor, "n c"], weights: Float[Tensor, " n"] | None = None
) -> Statistics:
    """The statistics of some samples, in float64. A weight counts a sample that many times."""
    features, targets = features.double(), targets.double()
    weighted, rows, count = targets, features, float(len(features))
    if weights is not None:
        weighted, rows = weights[:, None] * targets, weights.sqrt()[:, None] * features
        count = float(weights.sum())
    moment = add_moments([SecondMoment(rows=rows)])
    return Statistics(moment, features.mT @ weighted, weighted.sum(0), (weighted * targets).sum(0), count)


def add(parts: Sequence[Statistics], moment: SecondMoment | None = None) -> Statistics:
    """The statistics of all samples together. Parts with fewer targets have the first ones. `moment`: the sum of the
    second moments, where the caller keeps it.
    """
    targets = max(part.targets for part in parts)
    parts = [part if part.targets == targets else part.placed(range(part.targets), targets) for part in parts]
    return Statistics(
        add_moments([part.moment for part in parts]) if moment is None else moment,
        _total([part.cross for part in parts]),
        _total([part.sums for part in parts]),
        _total([part.squares for part in parts]),
        math.fsum(part.count for part in parts),
    )


def add_placed(
    parts: Sequence[tuple[Statistics, Sequence[int]]], targets: int, moment: SecondMoment | None = None
) -> Statistics:
    """The same with the targets of every part at places of their own among `targets`, as `Statistics.placed` has them,
    but without a widened copy of each part: there may be thousands.
    """
    first = parts[0][0].cross
    cross, sums, squares = first.new_zeros(len(first), targets), first.new_zeros(targets), first.new_zeros(targets)
    for part, places in parts:
        index = torch.tensor(list(places), dtype=torch.int64, device=first.device)
        for total, own in ((cross, part.cross), (sums, part.sums), (squares, part.squares)):
            total.index_add_(-1, index, own)
    moment = add_moments([part.moment for part, _ in parts]) if moment is None else moment
    return Statistics(moment, cross, sums, squares, math.fsum(part.count for part, _ in parts))


def subtract(whole: Statistics, part: Statistics) -> Statistics:
    """The statistics without some of the samples, which the caller knows to be among them."""
    return Statistics(
        SecondMoment(matrix=whole.moment.dense() - part.moment.dense()),
        whole.cross - part.cross,
        whole.sums - part.sums,
        whole.squares - part.squares,
        whole.count - part.count,
    )


class TargetScale(NamedTuple):
    """Mean and deviation of targets, whose last one is 1 for every sample: its C is Σψ and its sum n. With them the
    sums of other targets become those of targets with mean zero and variance one, exactly and whenever it is needed.
    """

    mean: Float[Tensor, " c"]
    deviation: Float[Tensor, " c"]

    @classmethod
    def of(cls, whole: Statistics) -> TargetScale:
        mean = whole.sums[:-1] / whole.sums[-1]
        variance = whole.squares[:-1] / whole.sums[-1] - mean.square()
        least = torch.finfo(variance.dtype).eps * whole.squares[:-1] / whole.sums[-1]  # what rounding leaves of zero
        return cls(mean, variance.where(variance > least, 1.0).sqrt())

    def apply(self, part: Statistics) -> Statistics:
        """The sums of scaled targets, without the constant one."""
        count = part.sums[-1]
        squares = part.squares[:-1] - 2.0 * self.mean * part.sums[:-1] + count * self.mean.square()
        return Statistics(
            part.moment,
            (part.cross[:, :-1] - part.cross[:, -1:] * self.mean) / self.deviation,
            (part.sums[:-1] - count * self.mean) / self.deviation,
            squares.clamp_min(0.0) / self.deviation.square(),
            part.count,
        )


def _total(tensors: Sequence[Tensor]) -> Tensor:
    total = tensors[0].clone()
    for tensor in tensors[1:]:
        total += tensor
    return total


class Spectrum(NamedTuple):
    """G = U diag(e) Uᵀ of rank k at most, and what every λ needs of the statistics."""

    values: Float[Tensor, " k"]
    vectors: Float[Tensor, "D k"]
    projected: Float[Tensor, "k c"]
    """UᵀC."""
    energy: Float[Tensor, " k"]
    """Its squares, summed over targets."""
    squares: float
    """Σ y² over samples and targets."""
    samples: float
    """n."""
    scale: float
    """The mean of ‖ψ‖²."""

    @property
    def condition(self) -> float:
        """The ratio of the largest eigenvalue of G to the smallest one that rounding leaves meaningful."""
        top = float(self.values[-1]) if len(self.values) else 0.0
        reliable = self.values[self.values > top * len(self.values) * torch.finfo(self.values.dtype).eps]
        return top / float(reliable[0]) if len(reliable) else 1.0


def spectrum(statistics: Statistics) -> Spectrum:
    """One eigendecomposition, of the k × k matrix RRᵀ where there are fewer rows than features."""
    rows, cross, count = statistics.moment.rows, statistics.cross, statistics.count
    if rows is None:
        values, vectors = torch.linalg.eigh(statistics.moment.dense(), UPLO="U")
        values = values.clamp_min(0.0)
    else:
        values, left = torch.linalg.eigh(rows @ rows.mT)
        kept = values > values.amax(0) * len(values) * torch.finfo(values.dtype).eps
        values = values[kept]
        vectors = (rows.mT @ left[:, kept]) / values.sqrt()
    scale = statistics.moment.trace / count
    projected = vectors.mT @ cross
    return Spectrum(
        values, vectors, projected, projected.square().sum(1), float(statistics.squares.sum()), count, scale
    )


def weights(spectrum: Spectrum, strength: float, cross: Float[Tensor, "D k"] | None = None) -> Float[Tensor, "D k"]:
    """W = (G + λI)⁻¹C. `cross`: in place of the C that the spectrum was made with."""
    projected = spectrum.projected if cross is None else spectrum.vectors.mT @ cross
    return spectrum.vectors @ (projected / (spectrum.values + strength)[:, None])


def variance(spectrum: Spectrum, strength: float, features: Float[Tensor, "n D"]) -> Float[Tensor, " n"]:
    """λψ(G + λI)⁻¹ψᵀ, the posterior variance k(x, x) − k_xᵀ(K + λI)⁻¹k_x of the same Gaussian process as
    `ridge.predictive_variance`.
    """
    shrunk = spectrum.values / (spectrum.values + strength)
    explained = ((features @ spectrum.vectors).square() * shrunk).sum(-1)
    return (features.square().sum(-1) - explained).clamp_min(0.0)


def residual_root(spectrum: Spectrum, strength: float, counts: Float[Tensor, " c"]) -> Float[Tensor, "c c"]:
    """R with RRᵀ = S⁻¹, where S = YᵀY − CᵀW is what ridge regression leaves of one-hot targets Y, whose classes have
    `counts` samples. A class without samples is given one, at the origin.
    """
    lengths = counts.where(counts > 0, 1.0).sqrt()
    explained = spectrum.projected / (spectrum.values + strength).sqrt()[:, None] / lengths
    rest = torch.eye(len(counts), dtype=explained.dtype, device=explained.device) - explained.mT @ explained
    values, vectors = torch.linalg.eigh(rest)
    return vectors / values.clamp_min(len(counts) * torch.finfo(values.dtype).eps).sqrt() / lengths[:, None]


def class_distances(
    root: Float[Tensor, "c c"],
    strength: float,
    counts: Float[Tensor, " c"],
    responses: Float[Tensor, "n c"],
    variance: Float[Tensor, " n"],
) -> Float[Tensor, "n c"]:
    """Mahalanobis distances of ψ to the class means m_c = C_c / n_c with the covariance that classes share, regularised
    as the ridge regression is: Σ = (G − Σ_c n_c m_cm_cᵀ + λI) / n.

    Woodbury's identity expresses Σ⁻¹ by (G + λI)⁻¹, W and S, so that no second decomposition is needed: with the
    `responses` r = ψW, their `variance` v = λψ(G + λI)⁻¹ψᵀ and the `root` of S⁻¹,

        d_c² = n (v/λ + (r − e_c)S⁻¹(r − e_c)ᵀ − 1/n_c).

    A class without samples is infinitely far.
    """
    left, right = responses @ root, root
    residuals = left.square().sum(1)[:, None] - 2.0 * left @ right.mT + right.square().sum(1)
    squares = counts.sum() * (variance[:, None] / strength + residuals - 1.0 / counts)
    return squares.clamp_min(0.0).sqrt().masked_fill(counts == 0, math.inf)


def evidence(spectrum: Spectrum, strength: float) -> float:
    """−2 log p(y | λ) per target, up to a constant, of the Gaussian process y ~ N(0, σ²(K/λ + I)) with σ² at its best
    value (Rasmussen and Williams, "Gaussian processes for machine learning", 2006, Eq. 5.8): lower is better.

    With G's eigenvalues e: yᵀ(K + λI)⁻¹y = (Σy² − Σ_j a_j²/(e_j + λ)) / λ and log|K + λI| = Σ log(e_j + λ) +
    (n − k) log λ.
    """
    values, count = spectrum.values, spectrum.samples
    explained = float((spectrum.energy / (values + strength)).sum())
    residual = max(spectrum.squares - explained, 1e-12 * max(spectrum.squares, 1e-300))
    determinant = float(torch.log1p(values / strength).sum())  # log|K/λ + I|
    return count * math.log(residual) + determinant


def generalised_cross_validation(spectrum: Spectrum, strength: float) -> float:
    """RSS / (1 − df/n)² (Golub, Heath and Wahba, 1979): lower is better. Unreliable where n is close to D.

    Both parts are sums of positive terms, because they vanish together as λ → 0 where n ≤ D.
    """
    positive = spectrum.values > 0
    values, energy = spectrum.values[positive], spectrum.energy[positive]
    left = strength / (values + strength)
    unexplained = spectrum.squares - float((energy / values).sum())
    if unexplained < 1e-10 * spectrum.squares:  # rounding: the features explain every target
        unexplained = 0.0
    residual = unexplained + float((energy / values * left.square()).sum())
    freedom = spectrum.samples - len(values) + float(left.sum())
    return residual * (spectrum.samples / freedom) ** 2 if freedom > 0.0 else math.inf


STRENGTH_RULES: dict[str, Callable[[Spectrum, float], float]] = {
    "evidence": evidence,
    "gcv": generalised_cross_validation,
}
"""How λ is chosen from the statistics alone."""


def best_strength(spectrum: Spectrum, rule: str = "evidence") -> float:
    """The λ with the lowest criterion."""
    return _least(partial(STRENGTH_RULES[rule], spectrum), spectrum.scale)


def held_out_strength(spectrum: Spectrum, held_out: Statistics) -> float:
    """The λ with the lowest squared error Σ‖y − ψW‖² on samples that W was not learned from, of which the sums say all:
    Σy² − 2 tr(WᵀC) + tr(WᵀGW).
    """
    cross, squares = spectrum.vectors.mT @ held_out.cross, float(held_out.squares.sum())
    rows, matrix = held_out.moment.rows, held_out.moment.matrix
    seen = (
        spectrum.vectors.mT @ (held_out.moment.dense() @ spectrum.vectors) if rows is None else rows @ spectrum.vectors
    )

    def error(strength: float) -> float:
        solution = spectrum.projected / (spectrum.values + strength)[:, None]
        responses = seen @ solution
        square = responses.square() if matrix is None else responses * solution
        return float(squares - 2.0 * (solution * cross).sum() + square.sum())

    return _least(error, spectrum.scale)


def _least(judge: Callable[[float], float], scale: float) -> float:
    """The best λ of a grid, refined by golden-section search between its neighbours."""
    low, high = math.log(SMALLEST * scale), math.log(LARGEST * scale)
    step = (high - low) / (GRID - 1)
    grid = [low + step * place for place in range(GRID)]
    best = min(grid, key=lambda value: judge(math.exp(value)))
    left, right, golden = max(low, best - step), min(high, best + step), (math.sqrt(5.0) - 1.0) / 2.0
    for _ in range(REFINEMENTS):
        inner, outer = right - golden * (right - left), left + golden * (right - left)
        if judge(math.exp(inner)) <= judge(math.exp(outer)):
            right = outer
        else:
            left = inner
    return math.exp((left + right) / 2.0)
