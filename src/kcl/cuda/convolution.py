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

from kcl.cuda.stacking import runs_first
from kcl.cuda.streams import begin, side_by_side


class _Deferred:
    """Gradients of weights that nobody has waited for yet. Nothing but the update needs them, so they are computed
    beside the rest of the pass backwards; what they read must stay until then.
    """

    def __init__(self) -> None:
        self.wanted, self.held, self.sides = False, list[Tensor](), set[torch.cuda.Stream]()


_deferred = _Deferred()


@contextmanager
def deferred_weights(wanted: bool = True) -> Iterator[None]:
    """Let the gradients of convolutions' weights, of losses computed inside, be ready only at the end."""
    _deferred.wanted = wanted
    try:
        yield
    finally:
        _deferred.wanted = False
        if _deferred.held:
            present = torch.cuda.current_stream(_deferred.held[0].device)
            for side in _deferred.sides:
                present.wait_stream(side)
            _deferred.held.clear()
            _deferred.sides.clear()


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


@torch.library.custom_op("kcl::convolve", mutates_args=())
def _forward(x: Tensor, weight: Tensor, stride: int, padding: int) -> Tensor:
    def one(run: int) -> None:
        torch.ops.aten.cudnn_convolution.out(
            _image(x[run]), _image(weight[run]), [padding] * 2, [stride] * 2, [1, 1], 1,
            torch.backends.cudnn.benchmark, torch.backends.cudnn.deterministic, torch.backends.cudnn.allow_tf32,
            out=_image(out[run]),
        )  # fmt: skip

    out = _output(x, weight, stride, padding)
    side_by_side(x.device, "inputs", len(x), one)
    return out


def _output(x: Tensor, weight: Tensor, stride: int, padding: int) -> Tensor:
    runs, samples, *sides, _ = x.shape
    height, width = ((side + 2 * padding - weight.shape[2]) // stride + 1 for side in sides)
    return x.new_empty(runs, samples, height, width, weight.shape[1])


@_forward.register_fake
def _(x: Tensor, weight: Tensor, stride: int, padding: int) -> Tensor:
    return _output(x, weight, stride, padding)


@torch.library.custom_op("kcl::convolve_inputs", mutates_args=())
def _inputs(grad: Tensor, x: Tensor, weight: Tensor, stride: int, padding: int) -> Tensor:
    """The gradient of a convolution's input."""

    def one(run: int) -> None:
        found = _gradients(grad[run], x[run], weight[run], stride, padding, [True, False, False])
        _image(out[run]).copy_(found[0])

    out = torch.empty_like(x)
    side_by_side(x.device, "inputs", len(x), one)
    return out


@_inputs.register_fake
def _(grad: Tensor, x: Tensor, weight: Tensor, stride: int, padding: int) -> Tensor:
    return torch.empty_like(x)


@torch.library.custom_op("kcl::convolve_weights", mutates_args=())
def _weights(
    grad: Tensor, x: Tensor, weight: Tensor, stride: int, padding: int, outputs: int, inputs: int, later: bool
) -> Tensor:
    """The gradient of a convolution's weight, without what pads its channels, in float32."""

    def one(run: int) -> None:
        found = _gradients(grad[run], x[run], weight[run], stride, padding, [False, True, False])
        out[run].copy_(found[1][:outputs, :inputs])

    out = _unpacked(weight, outputs, inputs)
    if later:
        _deferred.sides.update(begin(x.device, "weights", len(x), one))
        _deferred.held += [grad, x, weight, out]
    else:
        side_by_side(x.device, "weights", len(x), one)
    return out


def _unpacked(weight: Tensor, outputs: int, inputs: int) -> Tensor:
    return weight.new_empty(len(weight), outputs, inputs, *weight.shape[2:4], dtype=torch.float32)


@_weights.register_fake
def _(grad: Tensor, x: Tensor, weight: Tensor, stride: int, padding: int, outputs: int, inputs: int,
      later: bool) -> Tensor:  # fmt: skip
    return _unpacked(weight, outputs, inputs)


class _Convolution(torch.autograd.Function):
    """Takes its runs in the first dimension; `convolve` and vmap see to that."""

    @staticmethod
    def forward(x: Tensor, weight: Tensor, stride: int, padding: int) -> tuple[Tensor, Tensor]:
        pads = [0, x.shape[-1] - weight.shape[2]] + [0] * 5 + [-weight.shape[1] % (16 // x.element_size())]
        packed = weight.permute(0, 1, 3, 4, 2).to(x.dtype, memory_format=torch.contiguous_format)
        packed = F.pad(packed, pads).contiguous() if any(pads) else packed.contiguous()
        return torch.ops.kcl.convolve(x, packed, stride, padding), packed

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        x, weight, *ctx.how = inputs
        ctx.mark_non_differentiable(output[1])
        ctx.outputs, ctx.inputs, ctx.later = weight.shape[1], weight.shape[2], _deferred.wanted
        ctx.save_for_backward(x, output[1])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor, *_: Tensor) -> tuple[Tensor | None, Tensor, None, None]:
        grad = grad.contiguous()
        saved, own = ctx.saved_tensors, (ctx.outputs, ctx.inputs, ctx.later)
        weights = torch.ops.kcl.convolve_weights(grad, *saved, *ctx.how, *own)
        inputs = torch.ops.kcl.convolve_inputs(grad, *saved, *ctx.how) if ctx.needs_input_grad[0] else None
        return inputs, weights, None, None

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], x: Tensor, weight: Tensor, *how: int) -> Any:
        runs = [tensor.squeeze(1) for tensor in runs_first(info.batch_size, in_dims[:2], (x, weight))]
        return tuple(tensor.unsqueeze(1) for tensor in _Convolution.apply(*runs, *how)), (0, 0)


def convolve(x: Tensor, weight: Tensor, stride: int, padding: int) -> Tensor:
    """Convolution without bias of (n, h, w, c) with a weight (o, c, k, k) of as many channels or fewer.

    The output's channels are padded with zeros to a multiple of 16 bytes.
    """
    return _Convolution.apply(x.unsqueeze(0), weight.unsqueeze(0), stride, padding)[0].squeeze(0)
