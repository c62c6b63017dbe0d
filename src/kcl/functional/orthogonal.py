"""Muon's update: a matrix of momentum with all its singular values brought near one.

Jordan et al., "Muon: an optimizer for hidden layers in neural networks", 2024; the scale that makes its entries as
large as Adam's usually are is that of Liu et al., "Muon is scalable for LLM training", 2025.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from kcl.core.shapes import Float

STEPS = 5
COEFFICIENTS = 3.4445, -4.7750, 2.0315
SMALLEST = 1e-7
"""A matrix of a smaller norm is taken to be of this one: no direction is made out of nothing."""


def orthogonalised(matrices: Float[Tensor, "b o i"]) -> Float[Tensor, "b o i"]:
    """U S' Vᵀ for every matrix U S Vᵀ, with S' between about 0.7 and 1.2 where S is not too small: Newton–Schulz.

    X ← aX + (bG + cG²) X with G = XXᵀ acts on the singular values alone, as the odd polynomial aσ + bσ³ + cσ⁵. The
    products are as precise as the tensor given (TF32 where a GPU may use it); PyTorch's own Muon takes bfloat16, which
    the result forgives just as well.
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
    """What a step of rate one takes from every matrix: 0.2 · √max(o, i) times the orthogonalised momentum."""
    return 0.2 * math.sqrt(max(momenta.shape[-2:])) * orthogonalised(momenta)
