"""Matrix products that differ between devices in precision or form."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from kcl.core.shapes import Float
from kcl.ops import matmul_cuda
from kcl.ops.operation import Backend, Operation, traced
from kcl.ops.precision import activations


def _linear(x: Float[Tensor, "n d"], weight: Float[Tensor, "e d"], bias: Float[Tensor, " e"]) -> Float[Tensor, "n e"]:
    """x Wᵀ + b."""
    return F.linear(x, weight, bias)


def _linear_bf16(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """The product and the gradients of both its factors in bfloat16: summed in float32, then rounded."""
    return _matmul_bf16(x, weight.mT) + bias


def _matmul(left: Float[Tensor, "*s n d"], right: Float[Tensor, "*s d m"]) -> Float[Tensor, "*s n m"]:
    """A product that may be rounded."""
    return left @ right


def _matmul_bf16(left: Tensor, right: Tensor) -> Tensor:
    return (left.to(torch.bfloat16) @ right.to(torch.bfloat16)).to(left.dtype)


def _bf16_allowed(*_: Tensor) -> bool:
    return activations() == torch.bfloat16


def _inner(x: Float[Tensor, "n d"], y: Float[Tensor, "m d"]) -> Float[Tensor, "n m"]:
    """x·y for all pairs in float32, whatever precision is allowed around it: for kernels that are functions of it."""
    return x @ y.mT


def _gram(features: Float[Tensor, "*s m D"]) -> Float[Tensor, "*s m m"]:
    """ψψᵀ at float32's precision, whatever precision is allowed around it."""
    return features @ features.mT


def _affine_rows(
    x: Float[Tensor, "k 1 d"], weight: Float[Tensor, "k d e"], bias: Float[Tensor, "k 1 e"]
) -> Float[Tensor, "k 1 e"]:
    """x W + b for k single rows, each with a matrix of its own."""
    return torch.baddbmm(bias, x, weight)


def _affine_rows_fused(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """As products and sums, which the compiler fuses with their neighbours. For a batched product of single rows it
    would first copy the weights of all runs together.
    """
    return (x.mT * weight).sum(-2, keepdim=True) + bias


linear = Operation("linear", _linear, [Backend("bfloat16", "cpu", _linear_bf16, _bf16_allowed, tolerance=2e-2)])
rounded_matmul = Operation(
    "rounded_matmul", _matmul, [Backend("bfloat16", "cpu", _matmul_bf16, _bf16_allowed, tolerance=2e-2)]
)
inner = Operation("inner", _inner, [Backend("float32 without TF32", "cuda", matmul_cuda.inner)])
gram = Operation("gram", _gram, [Backend("float32 or Triton's tf32x3", "cuda", matmul_cuda.gram)])
affine_rows = Operation(
    "affine_rows", _affine_rows, [Backend("fused by the compiler", "cuda", _affine_rows_fused, traced)]
)
