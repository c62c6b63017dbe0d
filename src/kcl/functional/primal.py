"""Ridge regression in its primal form, W = (G + λI)⁻¹C, from the sums of `functional.statistics`.

This is Eq. 1 of the paper over all samples instead of a coreset. The same sums give λ without held-out data: one
eigendecomposition of G serves every λ, for the solution, for the evidence of the Gaussian process whose posterior mean
the solution is, and for generalised cross-validation.
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
GRID = 25
REFINEMENTS = 20


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
