"""Muon's update: a momentum matrix with all singular values moved close to one.

Jordan et al., "Muon: an optimizer for hidden layers in neural networks", 2024; the scale that matches the usual size of
Adam's updates is from Liu et al., "Muon is scalable for LLM training", 2025.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from kcl.core.shapes import Float

STEPS = 5
COEFFICIENTS = 3.4445, -4.7750, 2.0315
SMALLEST = 1e-7
"""Smallest norm to divide by, so that rounding noise is not scaled up to a direction."""


def orthogonalised(matrices: Float[Tensor, "b o i"]) -> Float[Tensor, "b o i"]:
    """U S' Vᵀ for every matrix U S Vᵀ, with S' between about 0.7 and 1.2 where S is not too small: Newton–Schulz.

    X ← aX + (bG + cG²) X with G = XXᵀ acts on the singular values alone, as the odd polynomial aσ + bσ³ + cσ⁵. The
    products have the precision of the argument (TF32 where a GPU may use it); PyTorch's Muon uses bfloat16, which the
    result tolerates just as well.
    """
    wide = matrices.shape[-2] <= matrices.shape[-1]
    x = matrices if wide else matrices.mT
    x = x / torch.linalg.matrix_norm(x, keepdim=True).clamp_min(SMALLEST)
    a, b, c = COEFFICIENTS
    for _ in range(STEPS):
        gram = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x if wide else x.mT


def update(momenta: Float[Tensor, "b o i"]) -> Float[Tensor, "b o i"]:
    """The update at learning rate one: 0.2 · √max(o, i) times the orthogonalised momentum."""
    return 0.2 * math.sqrt(max(momenta.shape[-2:])) * orthogonalised(momenta)
