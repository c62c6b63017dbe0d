"""relu → BatchNorm → dropout (+ residual) of many runs at once on a GPU, channels last: the ResNets' other half.

PyTorch's operations would read and write every activation a dozen times. Here the forward pass is three kernels, and so
is the backward pass. `nets.layers` has the same in plain PyTorch, for every other device.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from kcl.ops.operation import runs_first

STRETCHES, SUMMED, TILE, COLUMNS = 512, 512, 4096, 16
"""The largest number of partial sums for each part of a run; how many entries a program holds at a time if it sums, and
if it does not; how many channels' partial sums a program adds up. Many small programs are best: adding up the values of
several warps takes longer than reading them."""


class _Layout(NamedTuple):
    """How the rows of an activation (s, n, h, w, c) are divided among the programs of a kernel."""

    rows: int
    first: int
    parts: int
    stretch: int
    stretches: int
    channels: int
    columns: int
    tile: int

    @classmethod
    def of(cls, x: Tensor, first: int) -> _Layout:
        _, samples, height, width, channels = x.shape
        rows, first = samples * height * width, first * height * width
        columns = _power(channels)
        tile = max(1, SUMMED // columns)
        longest = max(first, rows - first)
        stretch = -(-max(1, -(-longest // STRETCHES)) // tile) * tile
        stretches = -(-first // stretch) + -(-(rows - first) // stretch)
        return cls(rows, first, 1 + (rows > first), stretch, stretches, channels, columns, tile)

    def in_tiles(self) -> _Layout:
        """The same rows divided as finely as possible, for kernels that sum nothing: the load is even."""
        tile = max(1, TILE // self.columns)
        stretches = -(-self.first // tile) + -(-(self.rows - self.first) // tile)
        return self._replace(stretch=tile, stretches=stretches, tile=tile)

    @property
    def cut(self) -> tuple[int, int, int]:
        """Arguments of the kernels."""
        return self.rows, self.first, self.stretch

    @property
    def fixed(self) -> dict[str, int]:
        """Constants that the kernels are compiled for."""
        return {"PARTS": self.parts, "CHANNELS": self.channels, "COLUMNS": self.columns}

    def pair(self, x: Tensor, count: int) -> tuple[Tensor, Tensor]:
        """Buffers for two sums over each of `count` stretches or parts of a run, by channel."""
        size = (len(x), count, self.channels)
        return x.new_empty(size, dtype=torch.float32), x.new_empty(size, dtype=torch.float32)

    def following(self, x: Tensor, chains: bool) -> tuple[Tensor, Tensor]:
        """For the next BatchNorm's partial sums; empty unless it `chains`."""
        return self.pair(x, self.stretches if chains else 0)

    @property
    def summed(self) -> dict[str, int]:
        """Constants of the kernels that add up partial sums."""
        most = -(-max(self.first, self.rows - self.first) // self.stretch)
        return self.fixed | {"COLUMNS": COLUMNS, "STRETCHES": _power(most)}


def _dropping(x: Tensor, kept: Tensor | None, rate: Tensor | None) -> tuple[Tensor, int, Tensor]:
    """The kernels' arguments for dropout. Without dropout they are placeholders that are not read."""
    return (x, 0, x) if kept is None or rate is None else (kept, kept.stride(0), rate)


def _power(value: int) -> int:
    return 1 << (value - 1).bit_length()


@torch.library.custom_op("kcl::norm_forward", mutates_args=("running_mean", "running_variance"))
def _forward(
    x: Tensor, weight: Tensor, bias: Tensor, running_mean: Tensor, running_variance: Tensor, kept: Tensor | None,
    rate: Tensor | None, residual: Tensor | None, means: Tensor | None, squares: Tensor | None,
    first: int, relu_before: bool, eps: float, chains: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    from kcl.ops import norm_triton as kernel

    layout, runs, channels, after_moments = _Layout.of(x, first), len(x), weight.shape[1], means is None
    written = layout if chains else layout.in_tiles()
    (mean, deviation), out = layout.pair(x, layout.parts), torch.empty_like(x)
    if means is None or squares is None:
        means, squares = layout.pair(x, layout.stretches)
        kernel.moments[(layout.stretches, runs)](
            x, means, squares, *layout.cut, relu_before, layout.channels, layout.columns, layout.tile
        )
    kernel.statistics[(runs, -(-layout.channels // COLUMNS))](
        means, squares, mean, deviation, running_mean, running_variance, *layout.cut, layout.stretches, channels, eps,
        **layout.summed,
    )  # fmt: skip
    kernel.forward[(written.stretches, runs)](
        x, mean, deviation, weight, weight.stride(0), bias, bias.stride(0), *_dropping(x, kept, rate),
        x if residual is None else residual, out, *(following := layout.following(x, chains)), *written.cut, channels,
        relu_before, kept is not None, residual is not None, chains, after_moments, **layout.fixed, TILE=written.tile,
    )  # fmt: skip
    return out, mean, deviation, *following


@_forward.register_fake
def _(x: Tensor, *inputs: Any) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    *_, first, _, _, chains = inputs
    layout = _Layout.of(x, first)
    return torch.empty_like(x), *layout.pair(x, layout.parts), *layout.following(x, chains)


@torch.library.custom_op("kcl::norm_backward", mutates_args=())
def _backward(
    grad: Tensor, x: Tensor, weight: Tensor, bias: Tensor, mean: Tensor, deviation: Tensor, kept: Tensor | None,
    rate: Tensor | None, first: int, relu_before: bool,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    from kcl.ops import norm_triton as kernel

    layout, runs, channels = _Layout.of(x, first), len(x), weight.shape[1]
    parameters = (weight, weight.stride(0), bias, bias.stride(0))
    shared = (grad, x, mean, deviation, *parameters, *_dropping(x, kept, rate))
    written, options = layout.in_tiles(), (relu_before, kept is not None)
    plain, weighted = layout.pair(x, layout.stretches)
    kernel.sums[(layout.stretches, runs)](
        *shared, plain, weighted, *layout.cut, channels, *options, **layout.fixed, TILE=layout.tile
    )
    plain_mean, weighted_mean = layout.pair(x, layout.parts)
    weight_grad, bias_grad, out = weight.new_empty(weight.shape), bias.new_empty(bias.shape), torch.empty_like(x)
    kernel.totals[(runs, -(-layout.channels // COLUMNS))](
        plain, weighted, plain_mean, weighted_mean, weight_grad, bias_grad, *layout.cut, layout.stretches, channels,
        **layout.summed,
    )  # fmt: skip
    kernel.backward[(written.stretches, runs)](
        *shared, plain_mean, weighted_mean, out, *written.cut, channels, *options, **layout.fixed, TILE=written.tile
    )
    return out, weight_grad, bias_grad


@_backward.register_fake
def _(grad: Tensor, x: Tensor, weight: Tensor, bias: Tensor, *_: Any) -> tuple[Tensor, Tensor, Tensor]:
    return torch.empty_like(x), weight.new_empty(weight.shape), bias.new_empty(bias.shape)


def _one_run(*tensors: Tensor | None) -> list[Tensor | None]:
    return [None if tensor is None else tensor.unsqueeze(0) for tensor in tensors]


def _by_run(
    count: int, in_dims: Sequence[int | None], tensors: Sequence[Tensor | None], not_copied: Sequence[int] = ()
) -> list[Tensor | None]:
    """For vmap rules: the tensors with the runs in place of the dimension that `_one_run` added, contiguous."""
    stacked = [None if tensor is None else runs_first(count, [dim], [tensor])[0].squeeze(1)
               for tensor, dim in zip(tensors, in_dims, strict=False)]  # fmt: skip
    return [tensor if tensor is None or place in not_copied else tensor.contiguous()
            for place, tensor in enumerate(stacked)]  # fmt: skip


_TENSORS = 10
_NOT_COPIED = (1, 2, 3, 4, 5)
"""Positions of the running statistics, which are changed in place, and of parts of larger tensors (weight, bias,
dropout masks) that need not be contiguous.
"""


class _Norm(torch.autograd.Function):
    """Runs are the first dimension of its tensors; `norm` and the vmap rule add it."""

    @staticmethod
    def forward(*inputs: Any) -> tuple[Tensor, ...]:
        return torch.ops.kcl.norm_forward(*inputs)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        x, weight, bias, _, _, kept, rate, residual, _, _, *ctx.options = inputs
        ctx.mark_non_differentiable(*output[1:])
        ctx.adds = residual is not None
        ctx.save_for_backward(x, weight, bias, *output[1:3], kept, rate)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
        grad = grad.contiguous()
        grads = torch.ops.kcl.norm_backward(grad, *ctx.saved_tensors, *ctx.options[:2])
        return (*grads, *[None] * 4, grad if ctx.adds else None, *[None] * 6)

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], *inputs: Any) -> Any:
        tensors = _by_run(info.batch_size, in_dims, inputs[:_TENSORS], _NOT_COPIED)
        output = _Norm.apply(*tensors, *inputs[_TENSORS:])
        return tuple(value.unsqueeze(1) for value in output), (0,) * len(output)


Partial = tuple[Tensor, Tensor]
"""Means and sums of squared deviations over stretches of rows."""


def norm(
    layer: nn.BatchNorm2d,
    x: Tensor,
    first: int,
    *,
    relu_before: bool,
    kept: Tensor | None = None,
    rate: Tensor | None = None,
    residual: Tensor | None = None,
    partial: Partial | None = None,
) -> tuple[Tensor, Partial | None]:
    """dropout(BN(relu(x))) + residual for an activation (n, h, w, c), channels last and perhaps padded with zeros; relu
    comes after BatchNorm unless `relu_before`.

    Statistics are taken over the first `first` samples and over the others; each updates the running averages. With a
    residual the output is also summed for the BatchNorm that follows it, which takes the result as `partial`.
    """
    chains = residual is not None
    running, summed = (layer.running_mean, layer.running_var), partial or (None, None)
    stack = _one_run(x, layer.weight, layer.bias, *running, kept, rate, residual, *summed)
    out, _, _, *following = _Norm.apply(*stack, first, relu_before, layer.eps, chains)
    means, squares = (tensor.squeeze(0) for tensor in following)
    return out.squeeze(0), (means, squares) if chains else None


def norm_and_gather(
    layer: nn.BatchNorm2d, x: Tensor, *, relu_before: bool, residual: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    """The same without dropout and over all samples at once, with the mean and variance of each channel."""
    running = layer.bias.clone(), layer.bias.clone()  # thrown away
    stack = _one_run(x, layer.weight, layer.bias, *running, None, None, residual, None, None)
    out, mean, deviation, *_ = _Norm.apply(*stack, len(x), relu_before, layer.eps, False)
    mean, deviation = (statistic[0, 0, : len(layer.weight)] for statistic in (mean, deviation))
    return out.squeeze(0), mean, (deviation.square().reciprocal() - layer.eps).clamp_min(0.0)


@torch.library.custom_op("kcl::norm_with", mutates_args=())
def _with(
    x: Tensor, mean: Tensor, deviation: Tensor, weight: Tensor, bias: Tensor, residual: Tensor | None, relu_before: bool
) -> Tensor:
    from kcl.ops import norm_triton as kernel

    written, out = _Layout.of(x, x.shape[1]).in_tiles(), torch.empty_like(x)
    kernel.forward[(written.stretches, len(x))](
        x, mean, deviation, weight, weight.stride(0), bias, bias.stride(0), *_dropping(x, None, None),
        x if residual is None else residual, out, out, out, *written.cut, weight.shape[1],
        relu_before, False, residual is not None, False, False, **written.fixed, TILE=written.tile,
    )  # fmt: skip
    return out


@_with.register_fake
def _(x: Tensor, *_: Any) -> Tensor:
    return torch.empty_like(x)


@_with.register_vmap
def _(info: Any, in_dims: tuple[int | None, ...], *inputs: Any) -> tuple[Tensor, int]:
    tensors = _by_run(info.batch_size, in_dims, inputs[:6])
    return torch.ops.kcl.norm_with(*tensors, *inputs[6:]).unsqueeze(1), 0


def norm_with(
    layer: nn.BatchNorm2d, x: Tensor, mean: Tensor, variance: Tensor, *, relu_before: bool, residual: Tensor | None
) -> Tensor:
    """The same with these means and variances of the channels. It has no gradient."""
    pads = [0, x.shape[-1] - len(layer.weight)]
    mean, deviation = F.pad(mean, pads), F.pad(torch.rsqrt(variance + layer.eps), pads)
    stack = _one_run(x, mean, deviation, layer.weight, layer.bias, residual)
    return torch.ops.kcl.norm_with(*stack, relu_before).squeeze(0)
