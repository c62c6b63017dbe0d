"""Kernel ridge regression in closed form (Eq. 1–5).

The weights of task t minimise Σ_i ‖y_i − w·ψ(x_i)‖² + λ‖w‖² over its coreset (Eq. 1; the paper's print misses
the square on the residual). By the representer theorem (Eq. 2) w = Σ_i α_i ψ(x_i), with α = (K + λI)⁻¹ Y (Eq. 3).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from kcl.cuda import cholesky
from kcl.shapes import Float


class _SolveShifted(torch.autograd.Function):
    """α = (K + λI)⁻¹ Y. Its gradient is another solve with the same matrix, never one through the factorisation:
    with ᾱ = ∂L/∂α and v = (K + λI)⁻¹ ᾱ, ∂L/∂Y = v, ∂L/∂K = −v αᵀ and ∂L/∂λ = −tr(v αᵀ).
    """

    @staticmethod
    def forward(gram: Tensor, targets: Tensor, strength: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        factor, inverse = cholesky.factorise(gram, strength)
        return cholesky.solve(factor, inverse, targets), factor, inverse

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: tuple[Tensor, Tensor, Tensor]) -> None:  # noqa: ARG004
        weights, factor, inverse = output
        ctx.mark_non_differentiable(factor, inverse)
        ctx.save_for_backward(weights, factor, inverse)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor, *_: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        weights, factor, inverse = ctx.saved_tensors
        solved = cholesky.solve(factor, inverse, grad)
        grad_gram = -(solved @ weights.mT)
        return grad_gram, solved, grad_gram.diagonal(dim1=-2, dim2=-1).sum(-1)

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple[int | None, ...], *inputs: Tensor
    ) -> tuple[tuple[Tensor, Tensor, Tensor], tuple[int, int, int]]:
        """Stacked runs are solved together: the routines take leading dimensions as they are."""
        stacked = [
            tensor.expand(info.batch_size, *tensor.shape) if dim is None else tensor.movedim(dim, 0)
            for tensor, dim in zip(inputs, in_dims, strict=True)
        ]
        return _SolveShifted.apply(*stacked), (0, 0, 0)


def solve_dual(
    gram: Float[Tensor, "*s m m"], targets: Float[Tensor, "*s m c"], strength: Float[Tensor, "*s"]
) -> Float[Tensor, "*s m c"]:
    """Dual weights of kernel ridge regression, α = (K + λI)⁻¹ Y (Eq. 3).

    `gram` must be symmetric: only its lower triangle is read. Where K + λI is not positive definite in floating
    point the result is not finite; nothing is raised, because that would need the device to be waited for.
    """
    return _SolveShifted.apply(gram, targets, strength)[0]


def predict_dual(cross: Float[Tensor, "n m"], weights: Float[Tensor, "m c"]) -> Float[Tensor, "n c"]:
    """Scores of n queries from their kernel values with the coreset, K̃ᵀα (Eq. 5 before scale and softmax)."""
    return cross @ weights


def primal_weights(features: Float[Tensor, "m D"], weights: Float[Tensor, "m c"]) -> Float[Tensor, "D c"]:
    """W = ψ(C)ᵀα (Eq. 2): with explicit features, ψ(x) W equals K̃ᵀα and no longer needs the coreset."""
    return features.mT @ weights
