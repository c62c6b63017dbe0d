"""Gram matrices of kernels, random Fourier features, and the length of what kernels compare.

These are pure functions; `methods.ridge_kernels` has the kernels that a method chooses from by name.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from kcl.core.shapes import Float
from kcl.functional.gaussian import DiagonalGaussian
from kcl.ops import inner
from kcl.ops import linear as affine


def linear(x: Float[Tensor, "n d"], y: Float[Tensor, "m d"]) -> Float[Tensor, "n m"]:
    """k(x, y) = x·y."""
    return x @ y.mT


def polynomial(x: Float[Tensor, "n d"], y: Float[Tensor, "m d"], degree: int = 3) -> Float[Tensor, "n m"]:
    """k(x, y) = (x·y + 1)^degree."""
    return (inner(x, y) + 1.0) ** degree


def rbf(x: Float[Tensor, "n d"], y: Float[Tensor, "m d"], gamma: float | Tensor = 0.5) -> Float[Tensor, "n m"]:
    """k(x, y) = exp(−γ‖x − y‖²).

    γ = 1/2 is the kernel whose spectral measure is N(0, I), the uninformative prior over frequencies.
    """
    squared = (x * x).sum(-1)[..., :, None] + (y * y).sum(-1)[..., None, :] - 2.0 * inner(x, y)
    return torch.exp(-gamma * squared.clamp_min(0.0))  # rounding can push ‖x − x‖² below zero


def laplacian(x: Float[Tensor, "n d"], y: Float[Tensor, "m d"], gamma: float | Tensor = 0.25) -> Float[Tensor, "n m"]:
    """k(x, y) = exp(−γ‖x − y‖₁): the authors' released code computes this, with γ = 1/4, and calls it RBF."""
    return torch.exp(-gamma * torch.cdist(x, y, p=1.0))


def fourier_features(
    x: Float[Tensor, "n d"], frequencies: Float[Tensor, "D d"], phases: Float[Tensor, " D"]
) -> Float[Tensor, "n D"]:
    """Random Fourier features ψ(x) = √(2/D) cos(ωx + b) (Eq. 7).

    The paper prints √(1/D). With b ~ U[0, 2π], E[2 cos(ωx + b) cos(ωy + b)] = E[cos ω(x − y)] = k(x, y),
    so √(2/D) is the scale at which ψ(x)·ψ(y) is unbiased (Bochner's theorem, Eq. 6).
    """
    return _cosines(affine(x, frequencies, phases))


def variational_features(
    x: Float[Tensor, "n d"], posterior: DiagonalGaussian, noise: Float[Tensor, "D d"], phases: Float[Tensor, " D"]
) -> Float[Tensor, "n D"]:
    """ψ(x) for D reparameterised draws ω = μ + σε of the frequencies, from standard normal ε.

    ω is never formed: ωx = ε(σx) + μ·x. Only x, μ and σ need gradients, so one product with ε replaces two with ω.
    """
    deviation = torch.exp(0.5 * posterior.log_variance)
    return _cosines(affine(x * deviation, noise, phases) + (x @ posterior.mean)[:, None])


def reparameterised(posterior: DiagonalGaussian, noise: Float[Tensor, "D d"]) -> Float[Tensor, "D d"]:
    """The frequencies ω = μ + σε, for use with many queries."""
    return posterior.mean + torch.exp(0.5 * posterior.log_variance) * noise


def _cosines(angles: Float[Tensor, "n D"]) -> Float[Tensor, "n D"]:
    return math.sqrt(2.0 / angles.shape[-1]) * torch.cos(angles)


def weigh_stages(features: Float[Tensor, "n d"], parts: Sequence[int]) -> Float[Tensor, "n d"]:
    """Features of several stages, scaled to unit length: each stage has half the squared length of the next."""
    squares = [2.0**stage / (2.0 ** len(parts) - 1.0) for stage in range(len(parts))]
    stages = zip(features.split(list(parts), dim=-1), squares, strict=True)
    return torch.cat([math.sqrt(square) * unit_length(stage) for stage, square in stages], dim=-1)


def unit_length(features: Float[Tensor, "n d"]) -> Float[Tensor, "n d"]:
    """x / ‖x‖, smoothed at zero: all-zero features stay zero and have a finite gradient."""
    return features * torch.rsqrt(features.square().sum(-1, keepdim=True) + 1e-12)
