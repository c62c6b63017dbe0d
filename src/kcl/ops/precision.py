"""Which products may use the tensor cores' TF32 format (10 bits of mantissa) on a GPU, which bfloat16 (7 bits) on a
CPU, and which may not.

The backbone and the random features may, as networks usually do. The Gram matrix may not:
K + λI is inverted, and its error would come back multiplied by the condition number. It is computed in float32, or on
the tensor cores with every number split in two, which is as exact to a few units in the last place.
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
from torch.fx.experimental.proxy_tensor import get_proxy_mode

from kcl.core.shapes import Float
from kcl.ops import triton_available
from kcl.ops.stacking import runs_first

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
    """Compute at one of the PRECISIONS. `tries`: in how many ways cuDNN tries each convolution out; 0 is all it has."""
    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    before = matmul.allow_tf32, cudnn.allow_tf32, cudnn.benchmark, cudnn.benchmark_limit
    matmul.allow_tf32 = cudnn.allow_tf32 = precision != "float32"
    cudnn.benchmark, cudnn.benchmark_limit = True, tries  # shapes stay for thousands of steps: it pays to try
    token = _activations.set(torch.bfloat16 if precision == "bf16" else torch.float32)
    try:
        yield
    finally:
        matmul.allow_tf32, cudnn.allow_tf32, cudnn.benchmark, cudnn.benchmark_limit = before
        _activations.reset(token)


def activations() -> torch.dtype:
    """What a ResNet's activations are held in while it is trained on a GPU."""
    return _activations.get()


def used(precision: str, device: torch.device, compiled: bool | None) -> str:
    """What of a precision comes to pass. On a CPU, bfloat16 where the step is compiled: the conversions would otherwise
    cost more than the products save.
    """
    return precision if device.type == "cuda" or (compiled and precision == "bf16") else "float32"


def at_test(precision: str) -> str:
    """What is computed in where runs are asked: answers never come from bfloat16."""
    return "tf32" if precision == "bf16" else precision


def answering(precision: str) -> AbstractContextManager[None]:
    """For tests of runs that are trained at one of the PRECISIONS. Their large batches are few, and long to try out."""
    return products(at_test(precision), tries=TRIES_AT_TEST)


def linear(x: Float[Tensor, "n d"], weight: Float[Tensor, "e d"], bias: Float[Tensor, " e"]) -> Float[Tensor, "n e"]:
    """x Wᵀ + b. On a CPU that may compute in bfloat16, so does the product, and the gradients of both its factors;
    it is summed in float32, then rounded.
    """
    if x.is_cuda or activations() == torch.float32:
        return F.linear(x, weight, bias)
    return rounded(x, weight.mT) + bias


def compiled_on_cpu(x: Tensor) -> bool:
    """Whether x belongs to a step on a CPU that is being traced to be compiled."""
    return not x.is_cuda and get_proxy_mode() is not None


def rounded(left: Float[Tensor, "*s n d"], right: Float[Tensor, "*s d m"]) -> Float[Tensor, "*s n m"]:
    """Their product, on a CPU in bfloat16 where that may be."""
    if left.is_cuda or activations() == torch.float32:
        return left @ right
    return (left.to(activations()) @ right.to(activations())).to(left.dtype)


def inner(x: Float[Tensor, "n d"], y: Float[Tensor, "m d"]) -> Float[Tensor, "n m"]:
    """x·y for all pairs in float32, whatever is allowed around it: for the kernels that are functions of it."""
    return _Inner.apply(x, y) if x.is_cuda else x @ y.mT


class _Inner(torch.autograd.Function):
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
        return _Inner.apply(*runs_first(info.batch_size, in_dims, inputs)), 0


@torch.library.custom_op("kcl::inner", mutates_args=())
def _inner(x: Tensor, y: Tensor) -> Tensor:
    with products("float32"):
        return x @ y.mT


@_inner.register_fake
def _(x: Tensor, y: Tensor) -> Tensor:
    return x.new_empty(*x.shape[:-1], y.shape[-2])


def gram(features: Float[Tensor, "*s m D"]) -> Float[Tensor, "*s m m"]:
    """ψψᵀ at float32's precision, whatever is allowed around it."""
    return torch.ops.kcl.gram(features) if features.is_cuda else features @ features.mT


@torch.library.custom_op("kcl::gram", mutates_args=())
def _gram(features: Tensor) -> Tensor:
    suits = features.is_cuda and features.dtype == torch.float32 and triton_available()
    if suits and torch.backends.cuda.matmul.allow_tf32:
        return _gram_triton(features)
    with products("float32"):
        return features @ features.mT


def _gram_triton(features: Tensor) -> Tensor:
    from kcl.ops import gram_kernel

    *runs, size, width = features.shape
    flat = features.reshape(-1, size, width)
    flat = flat if flat.stride(-1) == 1 else flat.contiguous()
    out = features.new_empty(*runs, size, size)
    side, depth = (16, 128) if len(flat) * size**2 <= 200_000 else (32, 64)  # few runs: smaller tiles, more programs
    tiles = -(-size // side)
    gram_kernel.gram[(len(flat), tiles, tiles)](
        flat, out, size, width, flat.stride(0), flat.stride(1), side, depth, num_warps=2
    )
    return out


@_gram.register_fake
def _(features: Tensor) -> Tensor:
    return features.new_empty(*features.shape[:-1], features.shape[-2])
