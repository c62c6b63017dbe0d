"""Convolutions of many runs on a GPU, channels last: one cuDNN call per run, side by side on several streams.

A grouped convolution would hold all runs in one call, but cuDNN works through the groups one by one, and slowly for
few channels. One run's convolution does not fill the GPU; several at a time do.
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
from kcl.ops.stacking import runs_first
from kcl.ops.streams import INPUTS, begin, side_by_side, stream


class _Beside:
    """What is done with convolutions' weights beside the passes. Their gradients nothing but the update needs: nobody
    has waited for them yet, and what they read must stay until then. Packing them needs nothing that a pass computes.
    """

    def __init__(self) -> None:
        self.packing: torch.cuda.Stream | None = None
        self.held, self.sides = list[Tensor](), set[torch.cuda.Stream]()


_beside = _Beside()


@contextmanager
def weights_beside(device: torch.device, wanted: bool = True) -> Iterator[None]:
    """Let convolutions' weights, which nothing inside may change, be packed from the beginning on, and let their
    gradients, of losses computed inside, be ready only at the end.
    """
    if not wanted or device.type != "cuda":
        yield
        return
    present, _beside.packing = torch.cuda.current_stream(device), stream(device, "packing")
    _beside.packing.wait_stream(present)
    try:
        yield
    finally:
        for side in (_beside.packing, *_beside.sides):
            present.wait_stream(side)
        _beside.packing = None
        _beside.held.clear()
        _beside.sides.clear()


def _packed(weight: Tensor, x: Tensor, fold: Fold | None) -> Tensor:
    """Weights (s, o, c, k, k) as (s, o, k, k, c) in the activations' data type, both channels padded with zeros: to the
    activations' and to a multiple of 16 bytes.
    """
    weight = weight if fold is None else fold.weight(weight)
    pads = [0, x.shape[-1] - weight.shape[2]] + [0] * 5 + [-weight.shape[1] % (16 // x.element_size())]
    packed = weight.permute(0, 1, 3, 4, 2).to(x.dtype, memory_format=torch.contiguous_format)
    return F.pad(packed, pads).contiguous() if any(pads) else packed.contiguous()


def _turned(packed: Tensor) -> Tensor:
    """Packed weights (s, o, k, k, c) as those (s, c, k, k, o) of the convolution, of stride 1, that takes the gradient
    of the output to the gradient of the input.
    """
    return packed.flip(2, 3).permute(0, 4, 2, 3, 1).contiguous()


def _packed_beside(weight: Tensor, x: Tensor, fold: Fold | None, turns: bool) -> tuple[Tensor, Tensor]:
    """Packed and, where wanted, turned; on a stream of its own where there is one. Its memory is used again by that
    stream alone, which does not go on before the next step.
    """
    if _beside.packing is None:
        packed = _packed(weight, x, fold)
        return packed, _turned(packed) if turns else packed[:0]
    present = torch.cuda.current_stream(x.device)
    with torch.cuda.stream(_beside.packing):
        packed = _packed(weight, x, fold)
        present.wait_stream(_beside.packing)
        return packed, _turned(packed) if turns else packed[:0]


def _image(x: Tensor) -> Tensor:
    """(n, h, w, c) as (n, c, h, w), the same memory: what PyTorch calls channels-last."""
    return x.permute(0, 3, 1, 2)


def _gradients(
    grad: Tensor, x: Tensor, weight: Tensor, stride: int, padding: int, wanted: list[bool]
) -> tuple[Tensor, Tensor, Tensor]:
    """Of one run, of which (n, h, w, c) tensors are given."""
    return torch.ops.aten.convolution_backward(
        _image(grad), _image(x), _image(weight), None, [stride] * 2, [padding] * 2, [1, 1], False, [0, 0], 1, wanted
    )


def _convolve(x: Tensor, weight: Tensor, stride: int, padding: int, out: Tensor) -> None:
    """Of one run, of which (n, h, w, c) tensors are given."""
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


@_forward.register_fake
def _(x: Tensor, weight: Tensor, stride: int, padding: int) -> Tensor:
    return _output(x, weight, stride, padding)


@torch.library.custom_op("kcl::convolve_inputs", mutates_args=())
def _inputs(
    grad: Tensor, x: Tensor, weight: Tensor, turned: Tensor, stride: int, padding: int, other: Tensor | None
) -> Tensor:
    """The gradient of a convolution's input, plus the `other` gradient of every stride-th pixel of it. With stride 1 it
    is a convolution too, which unlike cuDNN's own in PyTorch can be written where it is wanted.
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
def _(grad: Tensor, x: Tensor, weight: Tensor, turned: Tensor, stride: int, padding: int,
      other: Tensor | None) -> Tensor:  # fmt: skip
    return torch.empty_like(x)


def _strided(x: Tensor, stride: int) -> Tensor:
    return x[:, :, ::stride, ::stride]


@torch.library.custom_op("kcl::convolve_weights", mutates_args=())
def _weights(
    grad: Tensor, x: Tensor, weight: Tensor, stride: int, padding: int, own: list[int], fold: list[int], later: bool
) -> Tensor:
    """The gradient of a convolution's own weight (o, c, k, k), without what pads its channels, in float32."""

    def one(run: int) -> None:
        found = _gradients(grad[run], x[run], weight[run], stride, padding, [False, True, False])[1]
        if fold:
            found = Fold(*fold).unfolded(found[:, : fold[0] ** 2 * own[1]])
        out[run].copy_(found[: own[0], : own[1]])

    out = _unpacked(weight, own)
    if later:
        _beside.sides.update(begin(x.device, "weights", len(x), one))
        _beside.held += [grad, x, weight, out]
    else:
        side_by_side(x.device, "weights", len(x), one)
    return out


def _unpacked(weight: Tensor, own: list[int]) -> Tensor:
    return weight.new_empty(len(weight), *own, dtype=torch.float32)


@_weights.register_fake
def _(grad: Tensor, x: Tensor, weight: Tensor, stride: int, padding: int, own: list[int], fold: list[int],
      later: bool) -> Tensor:  # fmt: skip
    return _unpacked(weight, own)


class _Convolution(torch.autograd.Function):
    """Takes its runs in the first dimension; `convolve` and vmap see to that."""

    @staticmethod
    def forward(
        x: Tensor, weight: Tensor, stride: int, padding: int, fold: Fold | None, turns: bool, shows: bool
    ) -> tuple[Tensor, ...]:
        weights = _packed_beside(weight, x, fold, turns and stride == 1)
        out = torch.ops.kcl.convolve(x, weights[0], stride, padding)
        if not shows:
            return out, *weights
        return out, *weights, _strided(x, stride).contiguous() if stride > 1 else x.view_as(x)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        x, weight, *ctx.how, fold, _, _ = inputs
        ctx.set_materialize_grads(False)
        ctx.mark_non_differentiable(*output[1:3])
        ctx.own = list(weight.shape[1:]), list(fold or ()), _beside.packing is not None
        ctx.save_for_backward(x, *output[1:3])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor, _: None, __: None, other: Tensor | None = None) -> tuple[Tensor | None, ...]:
        grad, other = grad.contiguous(), None if other is None else other.contiguous()
        x, packed, turned = ctx.saved_tensors
        if _beside.packing is not None:  # what was turned last nobody has waited for
            torch.cuda.current_stream(x.device).wait_stream(_beside.packing)
        weights = torch.ops.kcl.convolve_weights(grad, x, packed, *ctx.how, *ctx.own)
        wanted = ctx.needs_input_grad[0]
        inputs = torch.ops.kcl.convolve_inputs(grad, x, packed, turned, *ctx.how, other) if wanted else None
        return inputs, weights, *[None] * 5

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], x: Tensor, weight: Tensor, *how: Any) -> Any:
        runs = [tensor.squeeze(1) for tensor in runs_first(info.batch_size, in_dims[:2], (x, weight))]
        output = _Convolution.apply(*runs, *how)
        return tuple(tensor.unsqueeze(1) for tensor in output), (0,) * len(output)


def convolve(x: Tensor, weight: Tensor, stride: int, padding: int) -> Tensor:
    """Convolution without bias of (n, h, w, c) with a weight (o, c, k, k) of as many channels or fewer.

    The output's channels are padded with zeros to a multiple of 16 bytes.
    """
    return _apply(x, weight, stride, padding)[0].squeeze(0)


def _apply(x: Tensor, weight: Tensor, stride: int, padding: int, shows: bool = False) -> tuple[Tensor, ...]:
    turns = torch.is_grad_enabled()
    return _Convolution.apply(x.unsqueeze(0), weight.unsqueeze(0), stride, padding, None, turns, shows)


def convolve_folded(x: Tensor, weight: Tensor, fold: Fold) -> Tensor:
    """The same convolution of images that were folded for it (`pack_images_cuda`)."""
    return _Convolution.apply(x.unsqueeze(0), weight.unsqueeze(0), 1, 0, fold, False, False)[0].squeeze(0)


def convolve_and_show(x: Tensor, weight: Tensor, stride: int, padding: int) -> tuple[Tensor, Tensor]:
    """The same, and every stride-th pixel of x for what else is done with it: so both gradients of x are added up where
    the first is written.
    """
    out, _, _, shown = _apply(x, weight, stride, padding, shows=True)
    return out.squeeze(0), shown.squeeze(0)
