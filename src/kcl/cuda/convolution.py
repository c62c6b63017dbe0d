"""Convolutions of many runs on a GPU, channels last: one cuDNN call per run, side by side on several streams.

A grouped convolution would hold all runs in one call, but cuDNN works through the groups one by one, and slowly for
few channels. One run's convolution does not fill the GPU; several at a time do.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from kcl.cuda.stacking import runs_first

STREAMS = 10


@cache
def _streams(device: torch.device) -> list[torch.cuda.Stream]:
    return [torch.cuda.Stream(device) for _ in range(STREAMS)]


def _side_by_side(device: torch.device, count: int, one: Callable[[int], Any]) -> list[Any]:
    """one(number) for every number below `count`, on several streams that begin after the present one's work and end before its next.

    So memory that a side stream gives back is not used again before the present stream is done with it.
    """
    if count == 1:
        return [one(0)]
    present, found = torch.cuda.current_stream(device), []
    sides = _streams(device)[:count]
    for side in sides:
        side.wait_stream(present)
    for number in range(count):
        with torch.cuda.stream(sides[number % len(sides)]):
            found.append(one(number))
    for side in sides:
        present.wait_stream(side)
    return found


def _image(x: Tensor) -> Tensor:
    """(n, h, w, c) as (n, c, h, w), the same memory: what PyTorch calls channels-last."""
    return x.permute(0, 3, 1, 2)


@torch.library.custom_op("kcl::convolve", mutates_args=())
def _forward(x: Tensor, weight: Tensor, stride: int, padding: int) -> Tensor:
    def one(run: int) -> None:
        torch.ops.aten.cudnn_convolution.out(
            _image(x[run]), _image(weight[run]), [padding] * 2, [stride] * 2, [1, 1], 1,
            torch.backends.cudnn.benchmark, torch.backends.cudnn.deterministic, torch.backends.cudnn.allow_tf32,
            out=_image(out[run]),
        )  # fmt: skip

    out = _output(x, weight, stride, padding)
    _side_by_side(x.device, len(x), one)
    return out


def _output(x: Tensor, weight: Tensor, stride: int, padding: int) -> Tensor:
    runs, samples, *sides, _ = x.shape
    height, width = ((side + 2 * padding - weight.shape[2]) // stride + 1 for side in sides)
    return x.new_empty(runs, samples, height, width, weight.shape[1])


@_forward.register_fake
def _(x: Tensor, weight: Tensor, stride: int, padding: int) -> Tensor:
    return _output(x, weight, stride, padding)


@torch.library.custom_op("kcl::convolve_backward", mutates_args=())
def _backward(
    grad: Tensor, x: Tensor, weight: Tensor, stride: int, padding: int, inputs: bool
) -> tuple[Tensor, Tensor]:
    runs = len(x)
    wanted = [[False, True, False]] * runs + [[True, False, False]] * (runs if inputs else 0)

    def one(number: int) -> tuple[Tensor, Tensor, Tensor]:
        run = number % runs
        return torch.ops.aten.convolution_backward(
            _image(grad[run]), _image(x[run]), _image(weight[run]), None, [stride] * 2, [padding] * 2, [1, 1], False,
            [0, 0], 1, wanted[number],
        )  # fmt: skip

    found = _side_by_side(x.device, len(wanted), one)
    weights = torch.stack([own[1].permute(0, 2, 3, 1) for own in found[:runs]])
    if not inputs:
        return x.new_empty(0), weights
    return torch.stack([own[0].permute(0, 2, 3, 1) for own in found[runs:]]), weights


@_backward.register_fake
def _(grad: Tensor, x: Tensor, weight: Tensor, stride: int, padding: int, inputs: bool) -> tuple[Tensor, Tensor]:
    return torch.empty_like(x) if inputs else x.new_empty(0), torch.empty_like(weight)


class _Convolution(torch.autograd.Function):
    """Takes its runs in the first dimension; `convolve` and vmap see to that."""

    @staticmethod
    def forward(x: Tensor, weight: Tensor, stride: int, padding: int) -> Tensor:
        return torch.ops.kcl.convolve(x, weight, stride, padding)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:  # noqa: ARG004
        x, weight, *ctx.how = inputs
        ctx.save_for_backward(x, weight)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor, None, None]:
        wanted = ctx.needs_input_grad[0]
        inputs, weights = torch.ops.kcl.convolve_backward(grad.contiguous(), *ctx.saved_tensors, *ctx.how, wanted)
        return inputs if wanted else None, weights, None, None

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], x: Tensor, weight: Tensor, *how: int) -> tuple[Tensor, int]:
        runs = [tensor.flatten(0, 1) for tensor in runs_first(info.batch_size, in_dims[:2], (x, weight))]
        return _Convolution.apply(*runs, *how).unflatten(0, (info.batch_size, -1)), 0


def convolve(x: Tensor, weight: Tensor, stride: int, padding: int) -> Tensor:
    """Convolution without bias of (n, h, w, c) with a weight (o, k, k, c)."""
    return _Convolution.apply(x[None], weight[None], stride, padding)[0]
