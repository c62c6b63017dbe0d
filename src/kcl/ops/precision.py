"""Matrix products, and which of them may be rounded: to TF32 on a GPU's tensor cores (10 bits of mantissa), to bfloat16
on a CPU (7 bits).

The backbone and the random features may, as is usual for networks. The Gram matrix may not: K + λI is inverted, and its
error would be multiplied by the condition number. It is computed in float32, or on the tensor cores with every number
split in two, which is as exact to a few units in the last place.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from kcl.core.shapes import Float
from kcl.ops.operation import Backend, Operation, runs_first, traced, triton_available

PRECISIONS = {
    "float32": "float32 throughout",
    "tf32": "products and convolutions on the tensor cores in TF32",
    "bf16": "as tf32, and the ResNets' activations while training in bfloat16; in a compiled step on a CPU, "
    "products of the MLP, with the frequencies and of the ridge regression's gradient in bfloat16",
}
TRIES_AT_TEST = 8
_activations: ContextVar[torch.dtype] = ContextVar("activations", default=torch.float32)


@contextmanager
def products(precision: str, tries: int = 0) -> Iterator[None]:
    """Compute at one of the PRECISIONS. `tries`: how many of its algorithms cuDNN times for a convolution; 0 is all."""
    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    saved = matmul.allow_tf32, cudnn.allow_tf32, cudnn.benchmark, cudnn.benchmark_limit
    matmul.allow_tf32 = cudnn.allow_tf32 = precision != "float32"
    cudnn.benchmark, cudnn.benchmark_limit = True, tries  # shapes stay for thousands of steps: timing pays
    token = _activations.set(torch.bfloat16 if precision == "bf16" else torch.float32)
    try:
        yield
    finally:
        matmul.allow_tf32, cudnn.allow_tf32, cudnn.benchmark, cudnn.benchmark_limit = saved
        _activations.reset(token)


def activations() -> torch.dtype:
    """The data type that activations may be rounded to: a ResNet's on a GPU, factors of products on a CPU."""
    return _activations.get()


def used(precision: str, device: torch.device, compiled: bool | None) -> str:
    """The precision that is used when `precision` is requested. A CPU uses bfloat16 only in compiled steps: otherwise
    the conversions would cost more than the products save.
    """
    return precision if device.type == "cuda" or (compiled and precision == "bf16") else "float32"


def at_test(precision: str) -> str:
    """The precision of predictions, which are never computed in bfloat16."""
    return "tf32" if precision == "bf16" else precision


def answering(precision: str) -> AbstractContextManager[None]:
    """The context for predictions of runs trained at one of the PRECISIONS. Few algorithms are timed: batches are
    large.
    """
    return products(at_test(precision), tries=TRIES_AT_TEST)


def _linear_bf16(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """The product and the gradients of both its factors in bfloat16: summed in float32, then rounded."""
    return _matmul_bf16(x, weight.mT) + bias


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


# On a GPU: operators that can be traced, vmapped and compiled around


class Inner(torch.autograd.Function):
    """`_inner` on a GPU, without TF32."""

    @staticmethod
    def forward(x: Tensor, y: Tensor) -> Tensor:
        return torch.ops.kcl.inner(x, y)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:  # noqa: ARG004
        ctx.save_for_backward(*inputs)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
        x, y = ctx.saved_tensors
        return grad @ y, grad.mT @ x

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], *inputs: Tensor) -> tuple[Tensor, int]:
        return Inner.apply(*runs_first(info.batch_size, in_dims, inputs)), 0


@torch.library.custom_op("kcl::inner", mutates_args=())
def _inner_cuda(x: Tensor, y: Tensor) -> Tensor:
    with products("float32"):
        return x @ y.mT


@_inner_cuda.register_fake
def _(x: Tensor, y: Tensor) -> Tensor:
    return x.new_empty(*x.shape[:-1], y.shape[-2])


@torch.library.custom_op("kcl::gram", mutates_args=())
def _gram_cuda(features: Tensor) -> Tensor:
    suits = features.is_cuda and features.dtype == torch.float32 and triton_available()
    if suits and torch.backends.cuda.matmul.allow_tf32:
        from kcl.ops import kernels_triton

        return kernels_triton.gram(features)
    with products("float32"):
        return features @ features.mT


@_gram_cuda.register_fake
def _(features: Tensor) -> Tensor:
    return features.new_empty(*features.shape[:-1], features.shape[-2])


linear = Operation("linear", F.linear, [Backend("bfloat16", "cpu", _linear_bf16, _bf16_allowed, tolerance=2e-2)])
"""x Wᵀ + b."""
rounded_matmul = Operation(
    "rounded_matmul", torch.matmul, [Backend("bfloat16", "cpu", _matmul_bf16, _bf16_allowed, tolerance=2e-2)]
)
"""A product that may be rounded."""
inner = Operation("inner", _inner, [Backend("float32 without TF32", "cuda", Inner.apply)])
gram = Operation("gram", _gram, [Backend("float32 or Triton's tf32x3", "cuda", _gram_cuda)])
affine_rows = Operation(
    "affine_rows", _affine_rows, [Backend("fused by the compiler", "cuda", _affine_rows_fused, traced)]
)
