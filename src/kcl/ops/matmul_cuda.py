"""Products on a GPU that must not be rounded to TF32, as operators that can be traced, vmapped and compiled around."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from kcl.ops.operation import triton_available
from kcl.ops.precision import products
from kcl.ops.stacking import runs_first


def inner(x: Tensor, y: Tensor) -> Tensor:
    return Inner.apply(x, y)


class Inner(torch.autograd.Function):
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
def _inner(x: Tensor, y: Tensor) -> Tensor:
    with products("float32"):
        return x @ y.mT


@_inner.register_fake
def _(x: Tensor, y: Tensor) -> Tensor:
    return x.new_empty(*x.shape[:-1], y.shape[-2])


@torch.library.custom_op("kcl::gram", mutates_args=())
def gram(features: Tensor) -> Tensor:
    suits = features.is_cuda and features.dtype == torch.float32 and triton_available()
    if suits and torch.backends.cuda.matmul.allow_tf32:
        from kcl.ops import gram_triton

        return gram_triton.gram(features)
    with products("float32"):
        return features @ features.mT


@gram.register_fake
def _(features: Tensor) -> Tensor:
    return features.new_empty(*features.shape[:-1], features.shape[-2])
