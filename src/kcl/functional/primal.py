"""Ridge regression in its primal form, W = (G + λI)⁻¹C, from the sums of `functional.statistics`.

This is Eq. 1 of the paper over all samples instead of a coreset. The same sums give λ without held-out data, by the
evidence of the Gaussian process whose posterior mean the solution is, or by generalised cross-validation. One
eigendecomposition of G serves every λ (`Spectrum`). It takes as long as some fifty Cholesky factorisations of G + λI,
so that with many features these are quicker, one for each λ that is tried (`Factors`).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from kcl.core.shapes import Float
from kcl.functional.statistics import Statistics

SMALLEST, LARGEST = 1e-8, 1e4
"""Bounds of λ, relative to the mean of ‖ψ‖²."""
GRID, REFINEMENTS = 25, 20
FACTORED_GRID, FACTORED_REFINEMENTS = 13, 8
"""Where every λ costs a factorisation: a tenth of λ more or less changes no answer that can be told."""
ROUNDING = 1e-10
"""What rounding may leave of Σ y² where nothing is left."""
MOST_DECOMPOSED = 2048
"""Features from which on G is factorised."""


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
        return _condition(self.values)

    @property
    def targets(self) -> int:
        return self.projected.shape[1]

    def weights(self, strength: float, cross: Float[Tensor, "D k"] | None = None) -> Float[Tensor, "D k"]:
        projected = self.projected if cross is None else self.vectors.mT @ cross
        return self.vectors @ (projected / (self.values + strength)[:, None])

    def variance(self, strength: float, features: Float[Tensor, "n D"]) -> Float[Tensor, " n"]:
        shrunk = self.values / (self.values + strength)
        explained = ((features @ self.vectors).square() * shrunk).sum(-1)
        return (features.square().sum(-1) - explained).clamp_min(0.0)

    def half(self, strength: float) -> Float[Tensor, "k c"]:
        return self.projected / (self.values + strength).sqrt()[:, None]

    def evidence(self, strength: float) -> float:
        explained = float((self.energy / (self.values + strength)).sum())
        return _evidence(self, explained, float(torch.log1p(self.values / strength).sum()))

    def generalised_cross_validation(self, strength: float) -> float:
        """Both parts are sums of positive terms, because they vanish together as λ → 0 where n ≤ D."""
        positive = self.values > 0
        values, energy = self.values[positive], self.energy[positive]
        left = strength / (values + strength)
        unexplained = self.squares - float((energy / values).sum())
        if unexplained < ROUNDING * self.squares:  # the features explain every target
            unexplained = 0.0
        residual = unexplained + float((energy / values * left.square()).sum())
        return _cross_validation(self, residual, self.samples - len(values) + float(left.sum()))

    def least(self, judge: Callable[[float], float]) -> float:
        return _least(judge, self.scale, GRID, REFINEMENTS)


class Factors:
    """The same from G + λI = UᵀU, which is factorised for every λ that is asked for."""

    def __init__(self, statistics: Statistics) -> None:
        self._gram, self._cross = statistics.moment.dense(), statistics.cross
        self.squares, self.samples = float(statistics.squares.sum()), statistics.count
        self.scale = statistics.moment.trace / statistics.count
        self._last: tuple[float, Tensor] | None = None

    @property
    def condition(self) -> float:
        return _condition(torch.linalg.eigvalsh(self._gram, UPLO="U"))

    @property
    def targets(self) -> int:
        return self._cross.shape[1]

    def _factor(self, strength: float) -> Float[Tensor, "D D"]:
        """U. Where λ is lost in rounding, it is raised to what rounding leaves of it."""
        if self._last is None or self._last[0] != strength:
            self._last, asked = None, strength
            rounding = torch.finfo(self._gram.dtype).eps * self.scale * self.samples
            while self._last is None:
                regular = self._gram.clone()
                regular.diagonal().add_(strength)
                upper, failed = torch.linalg.cholesky_ex(regular, upper=True)
                if not int(failed):
                    self._last = asked, upper
                strength = max(10.0 * strength, rounding)
        return self._last[1]

    def weights(self, strength: float, cross: Float[Tensor, "D k"] | None = None) -> Float[Tensor, "D k"]:
        return torch.cholesky_solve(self._cross if cross is None else cross, self._factor(strength), upper=True)

    def variance(self, strength: float, features: Float[Tensor, "n D"]) -> Float[Tensor, " n"]:
        return strength * self._halved(strength, features.mT).square().sum(0)

    def half(self, strength: float) -> Float[Tensor, "D c"]:
        return self._halved(strength, self._cross)

    def _halved(self, strength: float, right: Float[Tensor, "D k"]) -> Float[Tensor, "D k"]:
        return torch.linalg.solve_triangular(self._factor(strength).mT, right, upper=False)

    def evidence(self, strength: float) -> float:
        upper = self._factor(strength)
        determinant = 2.0 * float(upper.diagonal().log().sum()) - len(upper) * math.log(strength)
        return _evidence(self, float(self.half(strength).square().sum()), determinant)

    def generalised_cross_validation(self, strength: float) -> float:
        """With GW = C − λW, RSS = Σy² − tr WᵀC − λ‖W‖². A difference that rounding could make is none to judge by."""
        weights, upper = self.weights(strength), self._factor(strength)
        residual = self.squares - float((weights * self._cross).sum()) - strength * float(weights.square().sum())
        inverse = torch.linalg.solve_triangular(upper, torch.eye(len(upper)).to(upper), upper=True)
        freedom = self.samples - len(upper) + strength * float(inverse.square().sum())
        return _cross_validation(self, residual, freedom) if residual > ROUNDING * self.squares else math.inf

    def least(self, judge: Callable[[float], float]) -> float:
        return _least(judge, self.scale, FACTORED_GRID, FACTORED_REFINEMENTS)


Decomposition = Spectrum | Factors


def _condition(values: Float[Tensor, " k"]) -> float:
    """The ratio of the largest eigenvalue of G to the smallest one that rounding leaves meaningful."""
    top = float(values[-1]) if len(values) else 0.0
    reliable = values[values > top * len(values) * torch.finfo(values.dtype).eps]
    return top / float(reliable[0]) if len(reliable) else 1.0


def decompose(statistics: Statistics) -> Decomposition:
    """What solves these statistics soonest."""
    few = len(statistics.moment.tensor) <= MOST_DECOMPOSED
    return spectrum(statistics) if few else Factors(statistics)


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


def weights(
    decomposition: Decomposition, strength: float, cross: Float[Tensor, "D k"] | None = None
) -> Float[Tensor, "D k"]:
    """W = (G + λI)⁻¹C. `cross`: in place of the C that the decomposition was made with."""
    return decomposition.weights(strength, cross)


def variance(decomposition: Decomposition, strength: float, features: Float[Tensor, "n D"]) -> Float[Tensor, " n"]:
    """λψ(G + λI)⁻¹ψᵀ, the posterior variance k(x, x) − k_xᵀ(K + λI)⁻¹k_x of the same Gaussian process as
    `ridge.predictive_variance`.
    """
    return decomposition.variance(strength, features)


def residual_root(decomposition: Decomposition, strength: float, counts: Float[Tensor, " c"]) -> Float[Tensor, "c c"]:
    """R with RRᵀ = S⁻¹, where S = YᵀY − CᵀW is what ridge regression leaves of one-hot targets Y, whose classes have
    `counts` samples. A class without samples is given one, at the origin.
    """
    lengths = counts.where(counts > 0, 1.0).sqrt()
    explained = decomposition.half(strength) / lengths
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


def evidence(decomposition: Decomposition, strength: float) -> float:
    """−2 log p(y | λ) per target, up to a constant, of the Gaussian process y ~ N(0, σ²(K/λ + I)) with σ² at its best
    value (Rasmussen and Williams, "Gaussian processes for machine learning", 2006, Eq. 5.8): lower is better.

    With G's eigenvalues e: yᵀ(K + λI)⁻¹y = (Σy² − Σ_j a_j²/(e_j + λ)) / λ and log|K + λI| = Σ log(e_j + λ) +
    (n − k) log λ.
    """
    return decomposition.evidence(strength)


def _evidence(decomposition: Decomposition, explained: float, determinant: float) -> float:
    """`determinant`: log|K/λ + I|."""
    squares = decomposition.squares
    residual = max(squares - explained, 1e-12 * max(squares, 1e-300))
    return decomposition.samples * math.log(residual) + determinant


def generalised_cross_validation(decomposition: Decomposition, strength: float) -> float:
    """RSS / (1 − df/n)² (Golub, Heath and Wahba, 1979): lower is better. Unreliable where n is close to D."""
    return decomposition.generalised_cross_validation(strength)


def _cross_validation(decomposition: Decomposition, residual: float, freedom: float) -> float:
    return residual * (decomposition.samples / freedom) ** 2 if freedom > 0.0 else math.inf


STRENGTH_RULES: dict[str, Callable[[Decomposition, float], float]] = {
    "evidence": evidence,
    "gcv": generalised_cross_validation,
}
"""How λ is chosen from the statistics alone."""


def best_strength(decomposition: Decomposition, rule: str = "evidence") -> float:
    """The λ with the lowest criterion."""
    return decomposition.least(partial(STRENGTH_RULES[rule], decomposition))


def held_out_strength(decomposition: Decomposition, held_out: Statistics) -> float:
    """The λ with the lowest squared error Σ‖y − ψW‖² on samples that W was not learned from, of which the sums say all:
    Σy² − 2 tr(WᵀC) + tr(WᵀGW).
    """
    squares, moment = float(held_out.squares.sum()), held_out.moment
    seen = moment.dense() if moment.rows is None else moment.rows

    def error(strength: float) -> float:
        solution = decomposition.weights(strength)
        responses = seen @ solution
        square = responses.square() if moment.matrix is None else responses * solution
        return float(squares - 2.0 * (solution * held_out.cross).sum() + square.sum())

    return decomposition.least(error)


def _least(judge: Callable[[float], float], scale: float, points: int, refinements: int) -> float:
    """The best λ of a grid, refined by golden-section search between its neighbours."""
    low, high = math.log(SMALLEST * scale), math.log(LARGEST * scale)
    step = (high - low) / (points - 1)
    grid = [low + step * place for place in range(points)]
    best = min(grid, key=lambda value: judge(math.exp(value)))
    left, right, golden = max(low, best - step), min(high, best + step), (math.sqrt(5.0) - 1.0) / 2.0
    for _ in range(refinements):
        inner, outer = right - golden * (right - left), left + golden * (right - left)
        if judge(math.exp(inner)) <= judge(math.exp(outer)):
            right = outer
        else:
            left = inner
    return math.exp((left + right) / 2.0)
