"""Cholesky factorisation and solve of many small symmetric positive definite matrices at once.

On a GPU, PyTorch's batched routines for 200 × 200 take several milliseconds and some cannot be captured in a CUDA
graph; one Triton program per matrix does it in a fraction of that (`benches/solve.py`).
"""

from __future__ import annotations

import torch
from torch import Tensor

from kcl.cuda import triton_available
from kcl.shapes import Float

LARGEST = 512
_BLOCK, _PRECISION, _WARPS = 32, "tf32x3", 8


def factorise(gram: Float[Tensor, "*s m m"], strength: Float[Tensor, "*s"]) -> tuple[Tensor, Tensor]:
    """The Cholesky factor of K + λI, and (with Triton) its inverted diagonal blocks; for use with `solve` only."""
    if _suits(gram):
        return _factorise_triton(gram, strength)
    shifted = gram.clone()
    shifted.diagonal(dim1=-2, dim2=-1).add_(strength[..., None])
    return torch.linalg.cholesky_ex(shifted)[0], gram.new_empty(0)


def solve(factor: Tensor, inverse: Tensor, targets: Float[Tensor, "*s m c"]) -> Float[Tensor, "*s m c"]:
    """(L Lᵀ)⁻¹ Y."""
    if inverse.numel():
        return _solve_triton(factor, inverse, targets)
    if not factor.is_cuda:
        return torch.cholesky_solve(targets, factor)
    # cholesky_solve may call MAGMA, which cannot be captured in a CUDA graph.
    half = torch.linalg.solve_triangular(factor, targets, upper=False)
    return torch.linalg.solve_triangular(factor.mT, half, upper=True)


def _suits(gram: Tensor) -> bool:
    return gram.is_cuda and gram.dtype == torch.float32 and gram.shape[-1] <= LARGEST and triton_available()


def _factorise_triton(gram: Tensor, strength: Tensor) -> tuple[Tensor, Tensor]:
    from kcl.cuda import cholesky_kernel

    size = gram.shape[-1]
    flat = gram.reshape(-1, size, size)
    flat = flat if flat.stride(-1) == 1 else flat.contiguous()
    padded = max(_BLOCK, 1 << (size - 1).bit_length())
    factor = gram.new_empty(*gram.shape[:-2], padded, padded)
    inverse = gram.new_empty(*gram.shape[:-2], padded, _BLOCK)
    cholesky_kernel.factorise[(len(flat),)](
        flat, strength.contiguous(), factor, inverse, size, flat.stride(0), flat.stride(1),
        padded, _BLOCK, _PRECISION, num_warps=_WARPS,
    )  # fmt: skip
    return factor, inverse


def _solve_triton(factor: Tensor, inverse: Tensor, targets: Tensor) -> Tensor:
    from kcl.cuda import cholesky_kernel

    *batch, size, classes = targets.shape
    padded, width = factor.shape[-1], max(16, 1 << (classes - 1).bit_length())
    out = targets.new_empty(*batch, padded, width)
    cholesky_kernel.solve[(out.numel() // (padded * width),)](
        factor, inverse, targets.contiguous(), out, size, classes, padded, _BLOCK, width, _PRECISION, num_warps=_WARPS
    )
    return out[..., :size, :classes]
