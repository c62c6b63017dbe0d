"""Kernels as pairs of functions: what is computed once per sample, and what compares two samples.

A `Kernel` holds `represent` (x → r) and `compare` (r, r' → Gram matrix). A kernel whose comparison is the plain
inner product is *explicit*: its ridge regression collapses to one weight matrix (see `ridge.primal_weights`),
so that a prediction no longer touches the coreset.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

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
    """k(x, y) = exp(−γ‖x − y‖₁): what the authors' released code computes under the name RBF, with γ = 1/4."""
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

    The frequencies are never formed: ωx = ε(σx) + μ·x. Only x, μ and σ need gradients, so one product with ε takes the
    place of two with ω.
    """
    deviation = torch.exp(0.5 * posterior.log_variance)
    return _cosines(affine(x * deviation, noise, phases) + (x @ posterior.mean)[:, None])


def reparameterised(posterior: DiagonalGaussian, noise: Float[Tensor, "D d"]) -> Float[Tensor, "D d"]:
    """ω = μ + σε, formed once where many queries will meet the same frequencies."""
    return posterior.mean + torch.exp(0.5 * posterior.log_variance) * noise


def _cosines(angles: Float[Tensor, "n D"]) -> Float[Tensor, "n D"]:
    return math.sqrt(2.0 / angles.shape[-1]) * torch.cos(angles)


def _unchanged(x: Tensor) -> Tensor:
    return x


def _squared_length(x: Float[Tensor, "n d"]) -> Float[Tensor, " n"]:
    return x.square().sum(-1)


def _polynomial_diagonal(x: Float[Tensor, "n d"], degree: int) -> Float[Tensor, " n"]:
    return (_squared_length(x) + 1.0) ** degree


def _one(x: Float[Tensor, "n d"]) -> Float[Tensor, " n"]:
    return x.new_ones(len(x))


class Kernel(NamedTuple):
    """k(x, y) = compare(represent(x), represent(y)), and k(x, x) = diagonal(represent(x))."""

    represent: Callable[[Tensor], Tensor]
    compare: Callable[[Tensor, Tensor], Tensor]
    diagonal: Callable[[Tensor], Tensor] = _squared_length

    def __call__(self, x: Float[Tensor, "n d"], y: Float[Tensor, "m d"]) -> Float[Tensor, "n m"]:
        return self.compare(self.represent(x), self.represent(y))

    @property
    def explicit(self) -> bool:
        """Whether `represent` is a feature map: k is an inner product of representations."""
        return self.compare is linear


def linear_kernel() -> Kernel:
    return Kernel(_unchanged, linear)


def polynomial_kernel(degree: int = 3) -> Kernel:
    return Kernel(_unchanged, partial(polynomial, degree=degree), partial(_polynomial_diagonal, degree=degree))


def rbf_kernel(gamma: float | Tensor = 0.5) -> Kernel:
    return Kernel(_unchanged, partial(rbf, gamma=gamma), _one)


def laplacian_kernel(gamma: float | Tensor = 0.25) -> Kernel:
    return Kernel(_unchanged, partial(laplacian, gamma=gamma), _one)


def fourier_kernel(frequencies: Float[Tensor, "D d"], phases: Float[Tensor, " D"]) -> Kernel:
    return Kernel(partial(fourier_features, frequencies=frequencies, phases=phases), linear)


def variational_kernel(posterior: DiagonalGaussian, noise: Float[Tensor, "D d"], phases: Float[Tensor, " D"]) -> Kernel:
    return Kernel(partial(variational_features, posterior=posterior, noise=noise, phases=phases), linear)
