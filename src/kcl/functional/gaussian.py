"""Diagonal Gaussians over the frequencies ω: the variational posterior and its prior (Eq. 8–11)."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from kcl.core.shapes import Float


class DiagonalGaussian(NamedTuple):
    """N(mean, diag(exp(log_variance))) in d dimensions."""

    mean: Float[Tensor, " d"]
    log_variance: Float[Tensor, " d"]


def bounded(gaussian: DiagonalGaussian, bound: float) -> DiagonalGaussian:
    """The same Gaussian with b·tanh(ln σ² / b) for ln σ²: within ±b, and nearly unchanged where |ln σ²| ≪ b.

    Not in the paper. Unbounded log-variances can grow until σ² or 1/σ² overflows and the divergence is NaN.
    """
    return gaussian._replace(log_variance=bound * torch.tanh(gaussian.log_variance / bound))


def standard_normal_like(other: DiagonalGaussian) -> DiagonalGaussian:
    """N(0, I), the uninformative prior."""
    return DiagonalGaussian(torch.zeros_like(other.mean), torch.zeros_like(other.log_variance))


def kl_divergence(q: DiagonalGaussian, p: DiagonalGaussian) -> Float[Tensor, ""]:
    """KL(q ‖ p) = ½ Σ [σ_q²/σ_p² + (μ_q − μ_p)²/σ_p² − 1 + ln σ_p² − ln σ_q²].

    The D frequencies are independent draws from one d-dimensional Gaussian; its divergence counts once.
    """
    log_ratio = q.log_variance - p.log_variance
    distance = (q.mean - p.mean).square() * torch.exp(-p.log_variance)
    return 0.5 * (torch.expm1(log_ratio) - log_ratio + distance).sum(-1)
