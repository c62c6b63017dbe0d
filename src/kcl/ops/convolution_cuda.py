"""Convolutions of many runs on a GPU, channels last: one cuDNN call per run, side by side on several streams.

A grouped convolution would be one call for all runs, but cuDNN computes the groups one after another, and slowly when
channels are few. One run's convolution does not fill the GPU; several at a time do.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from kcl.ops.folding import Fold
from kcl.ops.operation import runs_first
from kcl.ops.streams import INPUTS, begin, side_by_side, stream


class _Overlap:
    """Work on convolution weights that overlaps with the passes. Only the update needs the weights' gradients, so no
    stream waits for them until then, and the tensors they read are held. Packing depends on nothing that a pass
    computes.
    """

    def __init__(self) -> None:
        self.packing: torch.cuda.Stream | None = None
        self.held, self.sides = list[Tensor](), set[torch.cuda.Stream]()


_overlap = _Overlap()


@contextmanager
def weights_beside(device: torch.device) -> Iterator[None]:
    """Pack convolution weights ahead, on a stream of their own, and compute their gradients on others: they are ready
    when the context ends. Inside it the weights must not change.
    """
    present, _overlap.packing = torch.cuda.current_stream(device), stream(device, "packing")
    _overlap.packing.wait_stream(present)
    try:
        yield
    finally:
        for side in (_overlap.packing, *_overlap.sides):
            present.wait_stream(side)
        _overlap.packing = None
        _overlap.held.clear()
        _overlap.sides.clear()


def _packed(weight: Tensor, x: Tensor, fold: Fold | None) -> Tensor:
    """Weights (s, o, c, k, k) as (s, o, k, k, c) in the activations' data type. Both channel dimensions are padded with
    zeros: c to the activations' channels, o to a multiple of 16 bytes.
    """
    weight = weight if fold is None else fold.weight(weight)
    pads = [0, x.shape[-1] - weight.shape[2]] + [0] * 5 + [-weight.shape[1] % (16 // x.element_size())]
    packed = weight.permute(0, 1, 3, 4, 2).to(x.dtype, memory_format=torch.contiguous_format)
    return F.pad(packed, pads).contiguous() if any(pads) else packed.contiguous()


def _turned(packed: Tensor) -> Tensor:
    """Packed weights (s, o, k, k, c) rotated to (s, c, k, k, o): with stride 1, convolving the output's gradient with
    them gives the input's gradient.
    """
    return packed.flip(2, 3).permute(0, 4, 2, 3, 1).contiguous()


def _pack(weight: Tensor, x: Tensor, fold: Fold | None, turns: bool) -> tuple[Tensor, Tensor]:
    """Packed weights, and with `turns` the rotated ones; on the packing stream if there is one. Only that stream reuses
    the memory, and it does not continue before the next step.
    """
    if _overlap.packing is None:
        packed = _packed(weight, x, fold)
        return packed, _turned(packed) if turns else packed[:0]
    present = torch.cuda.current_stream(x.device)
    with torch.cuda.stream(_overlap.packing):
        packed = _packed(weight, x, fold)
        present.wait_stream(_overlap.packing)
        return packed, _turned(packed) if turns else packed[:0]


def _image(x: Tensor) -> Tensor:
    """(n, h, w, c) as (n, c, h, w), the same memory: what PyTorch calls channels-last."""
    return x.permute(0, 3, 1, 2)


def _gradients(
    grad: Tensor, x: Tensor, weight: Tensor, stride: int, padding: int, mask: list[bool]
) -> tuple[Tensor, Tensor, Tensor]:
    """Of one run, whose tensors are (n, h, w, c)."""
    return torch.ops.aten.convolution_backward(
        _image(grad), _image(x), _image(weight), None, [stride] * 2, [padding] * 2, [1, 1], False, [0, 0], 1, mask
    )


def _convolve(x: Tensor, weight: Tensor, stride: int, padding: int, out: Tensor) -> None:
    """Of one run, whose tensors are (n, h, w, c)."""
    torch.ops.aten.cudnn_convolution.out(
        _image(x), _image(weight), [padding] * 2, [stride] * 2, [1, 1], 1,
        torch.backends.cudnn.benchmark, torch.backends.cudnn.deterministic, torch.backends.cudnn.allow_tf32,
        out=_image(out),
    )  # fmt: skip


@torch.library.custom_op("kcl::convolve", mutates_args=())
def _forward(x: Tensor, weight: Tensor, stride: int, padding: int) -> Tensor:
    out = _output(x, weight, stride, padding)
    side_by_side(x.device, INPUTS, len(x), lambda run: _convolve(x[run], weight[run], stride, padding, out[run]))
    return out


def _output(x: Tensor, weight: Tensor, stride: int, padding: int) -> Tensor:
    runs, samples, *sides, _ = x.shape
    height, width = ((side + 2 * padding - weight.shape[2]) // stride + 1 for side in sides)
    return x.new_empty(runs, samples, height, width, weight.shape[1])


_forward.register_fake(_output)


@torch.library.custom_op("kcl::convolve_inputs", mutates_args=())
def _inputs(
    grad: Tensor, x: Tensor, weight: Tensor, turned: Tensor, stride: int, padding: int, other: Tensor | None
) -> Tensor:
    """The gradient of a convolution's input, plus the `other` gradient of every stride-th pixel of it. With stride 1 it
    is a convolution too, and unlike PyTorch's call of cuDNN's gradient that can write into a given tensor.
    """

    def one(run: int) -> None:
        if len(turned):
            _convolve(grad[run], turned[run], 1, weight.shape[2] - 1 - padding, out[run])
        else:
            _image(out[run]).copy_(_gradients(grad[run], x[run], weight[run], stride, padding, [True, False, False])[0])
        if other is not None and stride == 1:
            out[run].add_(other[run])

    out = torch.empty_like(x)
    side_by_side(x.device, INPUTS, len(x), one)
    if other is not None and stride > 1:
        _strided(out, stride).add_(other)
    return out


@_inputs.register_fake
def _(grad: Tensor, x: Tensor, *_: Any) -> Tensor:
    return torch.empty_like(x)


def _strided(x: Tensor, stride: int) -> Tensor:
    return x[:, :, ::stride, ::stride]


@torch.library.custom_op("kcl::convolve_weights", mutates_args=())
def _weights(
    grad: Tensor, x: Tensor, weight: Tensor, stride: int, padding: int, shape: list[int], fold: list[int], later: bool
) -> Tensor:
    """The gradient of a convolution's weight of this shape (o, c, k, k), without the padded channels, in float32."""

    def one(run: int) -> None:
        weight_grad = _gradients(grad[run], x[run], weight[run], stride, padding, [False, True, False])[1]
        if fold:
            weight_grad = Fold(*fold).unfolded(weight_grad[:, : fold[0] ** 2 * shape[1]])
        out[run].copy_(weight_grad[: shape[0], : shape[1]])

    out = _unpacked(weight, shape)
    if later:
        _overlap.sides.update(begin(x.device, "weights", len(x), one))
        _overlap.held += [grad, x, weight, out]
    else:
        side_by_side(x.device, "weights", len(x), one)
    return out


def _unpacked(weight: Tensor, shape: list[int]) -> Tensor:
    return weight.new_empty(len(weight), *shape, dtype=torch.float32)


@_weights.register_fake
def _(grad: Tensor, x: Tensor, weight: Tensor, stride: int, padding: int, shape: list[int], *_: Any) -> Tensor:
    return _unpacked(weight, shape)


class _ConvolutionCuda(torch.autograd.Function):
    """Runs are the first dimension of its tensors; `convolve` and the vmap rule add it."""

    @staticmethod
    def forward(
        x: Tensor, weight: Tensor, stride: int, padding: int, fold: Fold | None, turns: bool, shows: bool
    ) -> tuple[Tensor, ...]:
        weights = _pack(weight, x, fold, turns and stride == 1)
        out = torch.ops.kcl.convolve(x, weights[0], stride, padding)
        if not shows:
            return out, *weights
        return out, *weights, _strided(x, stride).contiguous() if stride > 1 else x.view_as(x)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        x, weight, *ctx.geometry, fold, _, _ = inputs
        ctx.set_materialize_grads(False)
        ctx.mark_non_differentiable(*output[1:3])
        ctx.weight = list(weight.shape[1:]), list(fold or ()), _overlap.packing is not None
        ctx.save_for_backward(x, *output[1:3])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor, _: None, __: None, other: Tensor | None = None) -> tuple[Tensor | None, ...]:
        grad, other = grad.contiguous(), None if other is None else other.contiguous()
        x, packed, turned = ctx.saved_tensors
        if _overlap.packing is not None:  # nothing has waited for the rotated weights yet
            torch.cuda.current_stream(x.device).wait_stream(_overlap.packing)
        weights = torch.ops.kcl.convolve_weights(grad, x, packed, *ctx.geometry, *ctx.weight)
        inputs = None
        if ctx.needs_input_grad[0]:
            inputs = torch.ops.kcl.convolve_inputs(grad, x, packed, turned, *ctx.geometry, other)
        return inputs, weights, *[None] * 5

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], x: Tensor, weight: Tensor, *options: Any) -> Any:
        runs = [tensor.squeeze(1) for tensor in runs_first(info.batch_size, in_dims[:2], (x, weight))]
        output = _ConvolutionCuda.apply(*runs, *options)
        return tuple(tensor.unsqueeze(1) for tensor in output), (0,) * len(output)


def convolve(x: Tensor, weight: Tensor, stride: int, padding: int) -> Tensor:
    """Convolution without bias of (n, h, w, c) with a weight (o, c′, k, k), where c′ ≤ c: further channels are padding.

    The output's channels are padded with zeros to a multiple of 16 bytes.
    """
    turns = torch.is_grad_enabled()
    return _ConvolutionCuda.apply(x[None], weight[None], stride, padding, None, turns, False)[0].squeeze(0)


def convolve_folded(x: Tensor, weight: Tensor, fold: Fold) -> Tensor:
    """The same for images that `pack_images` has folded for this convolution."""
    return _ConvolutionCuda.apply(x[None], weight[None], 1, 0, fold, False, False)[0].squeeze(0)


def convolve_and_show(x: Tensor, weight: Tensor, stride: int, padding: int) -> tuple[Tensor, Tensor]:
    """The same, and every stride-th pixel of x for the shortcut. Taken from here, the shortcut's gradient is added
    where the convolution's is written.
    """
    turns = torch.is_grad_enabled()
    out, _, _, shown = _ConvolutionCuda.apply(x[None], weight[None], stride, padding, None, turns, True)
    return out.squeeze(0), shown.squeeze(0)
