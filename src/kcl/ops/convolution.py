"""Convolution whose stacked form is one convolution per run.

vmap would turn stacked runs into one grouped convolution. With so few channels cuDNN computes it group by group anyway,
and the transpositions before and after cost more than the convolutions.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from kcl.core.shapes import Float
from kcl.ops.operation import runs_first


def convolve(
    x: Float[Tensor, "n c h w"], weight: Float[Tensor, "o c k k"], stride: int, padding: int
) -> Float[Tensor, "n o y x"]:
    """Plain two-dimensional convolution without bias."""
    return _Convolution.apply(x, weight, stride, padding)


class _Convolution(torch.autograd.Function):
    @staticmethod
    def forward(x: Tensor, weight: Tensor, stride: int, padding: int) -> Tensor:
        return F.conv2d(x, weight, stride=stride, padding=padding)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:  # noqa: ARG004
        x, weight, ctx.stride, ctx.padding = inputs
        ctx.save_for_backward(x, weight)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None, None, None]:
        x, weight = ctx.saved_tensors
        stride, padding, mask = [ctx.stride] * 2, [ctx.padding] * 2, [*ctx.needs_input_grad[:2], False]
        grads = torch.ops.aten.convolution_backward(
            grad, x, weight, None, stride, padding, [1, 1], False, [0, 0], 1, mask
        )
        return grads[0], grads[1], None, None

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple[int | None, ...], x: Tensor, weight: Tensor, stride: int, padding: int
    ) -> tuple[Tensor, int]:
        pairs = zip(*runs_first(info.batch_size, in_dims[:2], (x, weight)), strict=True)
        return torch.stack([_Convolution.apply(*pair, stride, padding) for pair in pairs]), 0
