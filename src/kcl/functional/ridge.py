"""Kernel ridge regression in closed form (Eq. 1–5).

The weights of task t minimise Σ_i ‖y_i − w·ψ(x_i)‖² + λ‖w‖² over its coreset (Eq. 1; the paper's print misses
the square on the residual). By the representer theorem (Eq. 2) w = Σ_i α_i ψ(x_i), with α = (K + λI)⁻¹ Y (Eq. 3).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from kcl import ops
from kcl.core.shapes import Float
from kcl.ops.operation import Backend, Operation, runs_first, traced


class _Ridge(torch.autograd.Function):
    """What the solutions below share: the matrices of all stacked runs are solved together."""

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: tuple[Tensor, ...]) -> None:
        ctx.mark_non_differentiable(*output[1:])
        ctx.save_for_backward(inputs[0], *output)

    @classmethod
    def vmap(cls, info: Any, in_dims: tuple[int | None, ...], *inputs: Tensor) -> Any:
        """The operations accept leading dimensions."""
        output = cls.apply(*runs_first(info.batch_size, in_dims, inputs))
        return output, (0,) * len(output)


class _Dual(_Ridge):
    """α = (K + λI)⁻¹ Y. Its gradient is another solve with the same matrix, never one through the factorisation:
    with ᾱ = ∂L/∂α and v = (K + λI)⁻¹ ᾱ, ∂L/∂Y = v, ∂L/∂K = −v αᵀ and ∂L/∂λ = −tr(v αᵀ).
    """

    @staticmethod
    def forward(kernel: Tensor, targets: Tensor, strength: Tensor) -> tuple[Tensor, Tensor]:
        return ops.factorise_and_solve(kernel, targets, strength)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor, *_: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        _, dual, factor = ctx.saved_tensors
        solved = ops.solve(factor, grad)
        return -(solved @ dual.mT), solved, -(solved * dual).sum((-2, -1))


class _Primal(_Ridge):
    """W = ψᵀα with α = (ψψᵀ + λI)⁻¹ Y. With W̄ = ∂L/∂W and v = (ψψᵀ + λI)⁻¹ ψ W̄, ∂L/∂Y = v, ∂L/∂λ = −tr(v αᵀ)
    and ∂L/∂ψ = α (W̄ − ψᵀv)ᵀ − v Wᵀ: products of rank c, where the gradient through ψψᵀ would take two of rank m.
    """

    @staticmethod
    def forward(features: Tensor, targets: Tensor, strength: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        dual, factor = ops.factorise_and_solve(ops.gram(features), targets, strength)
        return (dual.mT @ features).mT, dual, factor  # the order in which BLAS is fast

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor, *_: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        features, primal, dual, factor = ctx.saved_tensors
        solved = ops.solve(factor, features @ grad)
        left = torch.cat([dual, solved], dim=-1)
        right = torch.cat([grad.mT - solved.mT @ features, -primal.mT], dim=-2)
        return left @ right, solved, -(solved * dual).sum((-2, -1))


class _Scores(_Ridge):
    """S = ψ_q ψᵀα with α = (ψψᵀ + λI)⁻¹ Y, the queries' ψ_q below the coreset's ψ: one product with ψᵀ gives both Gram
    matrices. With S̄ = ∂L/∂S and v = (ψψᵀ + λI)⁻¹ ψψ_qᵀ S̄, ∂L/∂ψ = α (S̄ᵀψ_q − vᵀψ) − v αᵀψ and ∂L/∂ψ_q = S̄ αᵀψ.
    """

    @staticmethod
    def forward(features: Tensor, targets: Tensor, strength: Tensor) -> tuple[Tensor, ...]:
        size = targets.shape[-2]
        kernel, across = (features @ features[..., :size, :].mT).split([size, features.shape[-2] - size], dim=-2)
        dual, factor = ops.factorise_and_solve(kernel, targets, strength)
        return across @ dual, across.clone(), dual, factor

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor, *_: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        features, _, across, dual, factor = ctx.saved_tensors
        solved, nothing = ops.solve(factor, across.mT @ grad), torch.zeros_like(grad)
        left = torch.cat([torch.cat([dual, solved], dim=-1), torch.cat([nothing, -grad], dim=-1)], dim=-2)
        right = torch.cat([torch.cat([-solved, grad], dim=-2), torch.cat([-dual, nothing], dim=-2)], dim=-1)
        return ops.rounded_matmul(left, right.mT @ features), solved, -(solved * dual).sum((-2, -1))


def dual_weights(
    kernel: Float[Tensor, "*s m m"], targets: Float[Tensor, "*s m c"], strength: Float[Tensor, "*s"]
) -> Float[Tensor, "*s m c"]:
    """α = (K + λI)⁻¹ Y (Eq. 3): the scores of n queries are K̃ᵀα (Eq. 5 before scale and softmax).

    K must be symmetric: only its lower triangle is read. Where K + λI is not positive definite in floating point the
    result is not finite; nothing is raised, because that would require waiting for the device.
    """
    return _Dual.apply(kernel, targets, strength)[0]


def primal_weights(
    features: Float[Tensor, "*s m D"], targets: Float[Tensor, "*s m c"], strength: Float[Tensor, "*s"]
) -> Float[Tensor, "*s D c"]:
    """W = ψ(C)ᵀα (Eq. 2) for an explicit kernel K = ψψᵀ: ψ(x) W equals K̃ᵀα and no longer needs the coreset."""
    return _Primal.apply(features, targets, strength)[0]


def _scores_by_weights(
    features: Float[Tensor, "*s k D"], targets: Float[Tensor, "*s m c"], strength: Float[Tensor, "*s"]
) -> Float[Tensor, "*s n c"]:
    """ψ(x) W of n queries, with W fitted to m coreset samples. The k = m + n rows are the coreset, then the queries."""
    size = targets.shape[-2]
    coreset, queries = features.split([size, features.shape[-2] - size], dim=-2)
    return queries @ primal_weights(coreset, targets, strength)


# Without W it is quicker where a compiled step on a CPU learns from it. On a GPU its Gram matrix might be TF32.
query_scores = Operation(
    "query_scores",
    _scores_by_weights,
    [Backend("one Gram matrix", "cpu", lambda *args: _Scores.apply(*args)[0], traced, tolerance=1e-4)],
)


def half_solve(
    gram: Float[Tensor, "m m"], right: Float[Tensor, "m k"], strength: Float[Tensor, ""]
) -> Float[Tensor, "m k"]:
    """L⁻¹B with LLᵀ = K + λI: the half of (K + λI)⁻¹ that `predictive_variance` squares."""
    shifted = gram + strength * torch.eye(len(gram), dtype=gram.dtype, device=gram.device)
    return torch.linalg.solve_triangular(torch.linalg.cholesky_ex(shifted)[0], right, upper=False)


def predictive_variance(prior: Float[Tensor, " n"], halves: Float[Tensor, "m n"]) -> Float[Tensor, " n"]:
    """k(x, x) − k_xᵀ(K + λI)⁻¹k_x, from k(x, x) and L⁻¹k_x: how little the coreset says about a query.

    The posterior variance of the Gaussian process whose mean ridge regression is (Rasmussen and Williams, "Gaussian
    processes for machine learning", 2006, Eq. 2.26; not in the paper). Rounding cannot make it negative.
    """
    return (prior - halves.square().sum(0)).clamp_min(0.0)


def left_out(
    gram: Float[Tensor, "m m"], targets: Float[Tensor, "m c"], strength: Float[Tensor, ""], copies: int = 1
) -> tuple[Float[Tensor, "m c"], Float[Tensor, " m"]]:
    """What all other coreset samples predict for each of them, and with which variance: y_i − [A⁻¹Y]_i / [A⁻¹]_ii and
    1 / [A⁻¹]_ii − λ, with A = K + λI.

    Rasmussen and Williams, 2006, Eq. 5.12, without the noise λ that their variance includes. Predictions leave out all
    `copies` of a sample together, which lie a block of samples apart: [A⁻¹]_ii is then their block.
    """
    half = half_solve(gram, torch.eye(len(gram), dtype=gram.dtype, device=gram.device), strength)
    inverse = half.mT @ half
    blocks = inverse.view(copies, len(gram) // copies, copies, -1).diagonal(dim1=1, dim2=3).permute(2, 0, 1)
    residuals = torch.linalg.solve(blocks, (inverse @ targets).unflatten(0, (copies, -1)).transpose(0, 1))
    return targets - residuals.transpose(0, 1).flatten(0, 1), (1.0 / half.square().sum(0) - strength).clamp_min(0.0)
