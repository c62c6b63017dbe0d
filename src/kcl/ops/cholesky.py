"""Factorisation and solve of many small symmetric positive definite systems at once.

PyTorch's batched routines on a GPU take most of a millisecond for 200 × 200, and some of them cannot be captured in a
CUDA graph. The kernel in `cholesky.cu` gives every matrix a thread block that keeps it in registers; `benches/solve.py`
compares it with three alternatives. PyTorch compiles it at run time, once for each number of 16 × 16 blocks.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from importlib import resources
from typing import Any

import torch
from torch import Tensor

from kcl.core.shapes import Float
from kcl.ops import torch_private
from kcl.ops.operation import Backend, Operation
from kcl.ops.precision import inner

LARGEST = 256
"""The largest matrix whose triangle fits the registers of one thread block."""


def _factorise_and_solve(
    gram: Float[Tensor, "*s m m"], targets: Float[Tensor, "*s m c"], strength: Float[Tensor, "*s"]
) -> tuple[Float[Tensor, "*s m c"], Tensor]:
    """(K + λI)⁻¹ Y, and the Cholesky factor of K + λI in a form that `solve` understands."""
    shifted = gram.clone()
    shifted.diagonal(dim1=-2, dim2=-1).add_(strength[..., None])
    factor, failed = torch.linalg.cholesky_ex(shifted)
    factor = factor.masked_fill((failed != 0)[..., None, None], math.nan)  # a partial factor would pass for a whole one
    return _solve(factor, targets), factor


def _solve(factor: Tensor, targets: Float[Tensor, "*s m c"]) -> Float[Tensor, "*s m c"]:
    """(L Lᵀ)⁻¹ Y."""
    if not factor.is_cuda:
        return torch.cholesky_solve(targets, factor)
    # cholesky_solve may call MAGMA, which cannot be captured in a CUDA graph.
    half = torch.linalg.solve_triangular(factor, targets, upper=False)
    return torch.linalg.solve_triangular(factor.mT, half, upper=True)


# The launches of the kernel are custom operators so that they can be traced and compiled around.


@cache
def _kernel(name: str, blocks: int) -> Any:
    source = resources.files("kcl.ops").joinpath("cholesky.cu").read_text(encoding="utf-8")
    return torch_private.compile_cuda(f"#define BLOCKS {blocks}\n{source}", name)


def _launch(name: str, targets: Tensor, *tensors: Tensor) -> None:
    size, classes = targets.shape[-2:]
    grid = (targets.numel() // (size * classes), -(-classes // 16), 1)
    _kernel(name, -(-size // 16))(grid, (256, 1, 1), [*tensors, size, classes])


@torch.library.custom_op("kcl::factorise_and_solve", mutates_args=())
def _factorise_and_solve_cuda(gram: Tensor, targets: Tensor, strength: Tensor) -> tuple[Tensor, Tensor]:
    gram, targets, strength = gram.contiguous(), targets.contiguous(), strength.contiguous()
    out, factor = _solution_and_factor(gram, targets, strength)
    _launch("factorise_and_solve", targets, gram, targets, strength, factor, out)
    return out, factor


def _solution_and_factor(gram: Tensor, targets: Tensor, strength: Tensor) -> tuple[Tensor, Tensor]:
    side = -(-targets.shape[-2] // 16) * 16
    return targets.new_empty(targets.shape), gram.new_empty(*gram.shape[:-2], side, side)


_factorise_and_solve_cuda.register_fake(_solution_and_factor)


@torch.library.custom_op("kcl::solve", mutates_args=())
def _solve_cuda(factor: Tensor, targets: Tensor) -> Tensor:
    factor, targets = factor.contiguous(), targets.contiguous()
    out = torch.empty_like(targets)
    _launch("solve", targets, factor, targets, out)
    return out


_solve_cuda.register_fake(lambda _, targets: targets.new_empty(targets.shape))


def eliminate(
    gram: Float[Tensor, "*s m m"], targets: Float[Tensor, "*s m c"], strength: Float[Tensor, "*s"], head: int = LARGEST
) -> tuple[Float[Tensor, "*s m c"], Tensor]:
    """The same for a matrix too large for the CUDA kernel: its first `head` rows and columns are eliminated, then the
    rest.

    With K + λI = [A Bᵀ; B C] and Z = A⁻¹Bᵀ, x₂ = (C − BZ)⁻¹ (y₂ − B A⁻¹y₁) and x₁ = A⁻¹y₁ − Z x₂. The second
    result holds what `solve_eliminated` needs in one matrix: the factors of A and of C − BZ, and Z.
    """
    classes, lower = targets.shape[-1], gram[..., head:, :head]
    sides = torch.cat([targets[..., :head, :], lower.mT], dim=-1)
    solved, factor = factorise_and_solve(gram[..., :head, :head], sides, strength)
    first, coupling = solved.split([classes, lower.shape[-2]], dim=-1)
    rest = gram[..., head:, head:] - inner(lower, coupling.mT)
    second, rest_factor = factorise_and_solve(rest, targets[..., head:, :] - inner(lower, first.mT), strength)
    side = head + rest_factor.shape[-1]
    packed = factor.new_zeros(*factor.shape[:-2], side, side)
    packed[..., :head, :head] = factor
    packed[..., :head, head : gram.shape[-1]] = coupling
    packed[..., head:, head:] = rest_factor
    return torch.cat([first - inner(coupling, second.mT), second], dim=-2), packed


def solve_eliminated(packed: Tensor, targets: Float[Tensor, "*s m c"], head: int = LARGEST) -> Float[Tensor, "*s m c"]:
    """`solve` with the factor that `eliminate` returns."""
    coupling, upper = packed[..., :head, head : targets.shape[-2]], targets[..., :head, :]
    first = solve(packed[..., :head, :head], upper)
    second = solve(packed[..., head:, head:], targets[..., head:, :] - inner(coupling.mT, upper.mT))
    return torch.cat([first - inner(coupling, second.mT), second], dim=-2)


def _backends(whole: Callable[..., Any], by_blocks: Callable[..., Any]) -> list[Backend]:
    def in_float32(_: Tensor, targets: Tensor, *__: Tensor) -> bool:
        return targets.dtype == torch.float32

    def in_registers(_: Tensor, targets: Tensor, *__: Tensor) -> bool:
        return targets.dtype == torch.float32 and targets.shape[-2] <= LARGEST

    available = torch_private.can_compile_cuda
    return [
        Backend("CUDA", "cuda", whole, in_registers, available, tolerance=1e-3),
        Backend("CUDA, block by block", "cuda", by_blocks, in_float32, available, tolerance=1e-3),
    ]


factorise_and_solve = Operation(
    "factorise_and_solve", _factorise_and_solve, _backends(_factorise_and_solve_cuda, eliminate)
)
solve = Operation("solve", _solve, _backends(_solve_cuda, solve_eliminated))
