"""Convolution for one run or for many stacked ones.

Stacked runs have weights of their own, which cuDNN only knows as grouped convolution: slow for few channels, and
wrapped in transpositions. Triton kernels take the runs as one more dimension. On a CPU this is `conv2d`.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from kcl.cuda import triton_available
from kcl.shapes import Float


def convolve(
    x: Float[Tensor, "n c h w"], weight: Float[Tensor, "o c k k"], stride: int, padding: int
) -> Float[Tensor, "n o y x"]:
    """Plain convolution. Under vmap on a GPU, all runs are convolved in one kernel."""
    if x.is_cuda and x.dtype == torch.float32 and triton_available():
        return _Convolution.apply(x, weight, stride, padding)
    return F.conv2d(x, weight, stride=stride, padding=padding)


class _Convolution(torch.autograd.Function):
    @staticmethod
    def forward(x: Tensor, weight: Tensor, stride: int, padding: int) -> Tensor:
        if x.ndim == 4:
            return F.conv2d(x, weight, stride=stride, padding=padding)
        return torch.ops.kcl.convolve(x, weight, stride, padding)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:  # noqa: ARG004
        x, weight, ctx.stride, ctx.padding = inputs
        ctx.save_for_backward(x, weight)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor, None, None]:
        x, weight = ctx.saved_tensors
        if x.ndim == 4:
            both = torch.ops.aten.convolution_backward(
                grad,
                x,
                weight,
                None,
                [ctx.stride] * 2,
                [ctx.padding] * 2,
                [1, 1],
                False,
                [0, 0],
                1,
                [True, True, False],
            )
            return both[0], both[1], None, None
        grad_x = None
        if ctx.needs_input_grad[0]:
            grad_x = torch.ops.kcl.convolve_backward_input(grad, x, weight, ctx.stride, ctx.padding)
        return grad_x, torch.ops.kcl.convolve_backward_weight(grad, x, weight, ctx.stride, ctx.padding), None, None

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple[int | None, ...], x: Tensor, weight: Tensor, stride: int, padding: int
    ) -> tuple[Tensor, int]:
        stacked = [
            tensor.expand(info.batch_size, *tensor.shape) if dim is None else tensor.movedim(dim, 0)
            for tensor, dim in zip((x, weight), in_dims[:2], strict=True)
        ]
        return _Convolution.apply(*stacked, stride, padding), 0


def _sizes(x: Tensor, weight: Tensor, stride: int, padding: int) -> tuple[int, ...]:
    """n, C, H, W, O, Y, X."""
    *_, n, channels, height, width = x.shape
    outs, kernel = weight.shape[-4], weight.shape[-1]
    return n, channels, height, width, outs, *((side + 2 * padding - kernel) // stride + 1 for side in (height, width))


def _tile(count: int) -> int:
    return min(64, max(16, 1 << (count - 1).bit_length()))


def _precision() -> str:
    return "tf32" if torch.backends.cudnn.allow_tf32 else "ieee"


def _cdiv(a: int, b: int) -> int:
    return -(-a // b)


@torch.library.custom_op("kcl::convolve", mutates_args=())
def _convolve(x: Tensor, weight: Tensor, stride: int, padding: int) -> Tensor:
    from kcl.cuda import convolution_kernel

    x, weight, kernel = x.contiguous(), weight.contiguous(), weight.shape[-1]
    sizes = _sizes(x, weight, stride, padding)
    n, *_, outs, rows, columns = sizes
    out = x.new_empty(len(x), n, outs, rows, columns)
    grid = (len(x), _cdiv(n * rows * columns, 128), _cdiv(outs, _tile(outs)))
    convolution_kernel.forward[grid](
        x, weight, out, *sizes, kernel, kernel, stride, padding, 128, _tile(outs), 32, _precision()
    )
    return out


@_convolve.register_fake
def _(x: Tensor, weight: Tensor, stride: int, padding: int) -> Tensor:
    n, *_, outs, rows, columns = _sizes(x, weight, stride, padding)
    return x.new_empty(len(x), n, outs, rows, columns)


@torch.library.custom_op("kcl::convolve_backward_input", mutates_args=())
def _backward_input(grad: Tensor, x: Tensor, weight: Tensor, stride: int, padding: int) -> Tensor:
    from kcl.cuda import convolution_kernel

    grad, weight, kernel = grad.contiguous(), weight.contiguous(), weight.shape[-1]
    sizes = _sizes(x, weight, stride, padding)
    n, channels, height, width, *_ = sizes
    out = grad.new_empty(x.shape)
    grid = (len(x), _cdiv(n * height * width, 128), _cdiv(channels, _tile(channels)))
    convolution_kernel.backward_input[grid](
        grad, weight, out, *sizes, kernel, kernel, stride, padding, 128, _tile(channels), 32, _precision()
    )
    return out


@_backward_input.register_fake
def _(grad: Tensor, x: Tensor, weight: Tensor, stride: int, padding: int) -> Tensor:  # noqa: ARG001
    return grad.new_empty(x.shape)


@torch.library.custom_op("kcl::convolve_backward_weight", mutates_args=())
def _backward_weight(grad: Tensor, x: Tensor, weight: Tensor, stride: int, padding: int) -> Tensor:
    from kcl.cuda import convolution_kernel

    grad, x, kernel = grad.contiguous(), x.contiguous(), weight.shape[-1]
    sizes = _sizes(x, weight, stride, padding)
    n, channels, _, _, outs, rows, columns = sizes
    inner, pixels = channels * kernel * kernel, n * rows * columns
    tiles = _cdiv(inner, 64) * _cdiv(outs, _tile(outs))
    # Enough shares to fill the device, each of at least a few hundred pixels.
    shares = max(1, min(_cdiv(512, tiles * len(x)), _cdiv(pixels, 512)))
    share = _cdiv(_cdiv(pixels, shares), 64) * 64
    shares = _cdiv(pixels, share)
    parts = grad.new_empty(shares, len(x), *weight.shape[-4:])
    convolution_kernel.backward_weight[(len(x), shares, tiles)](
        grad, x, parts, *sizes, share, kernel, kernel, stride, padding, 64, _tile(outs), 64, _precision()
    )
    return parts.sum(0)


@_backward_weight.register_fake
def _(grad: Tensor, x: Tensor, weight: Tensor, stride: int, padding: int) -> Tensor:  # noqa: ARG001
    return grad.new_empty(len(x), *weight.shape[-4:])
