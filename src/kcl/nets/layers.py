"""The layers of the ResNets, twice: in plain PyTorch, and with the GPU kernels for many runs at once.

Both compute the same. The second keeps activations channels last, in the requested data type, with channels padded to a
multiple that the tensor cores are fast with.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from kcl.core.shapes import Float
from kcl.functional.noise import Noise, dropout
from kcl.ops import channels_last, convolution_cuda, precision
from kcl.ops.convolution import convolve
from kcl.ops.folding import Fold, pack_images
from kcl.ops.norm_cuda import Partial, norm, norm_and_gather, norm_with


class Moments:
    """BatchNorm statistics of all layers in one tensor: written by one pass, read by another, layer by layer."""

    def __init__(self, values: Float[Tensor, " k"] | None = None) -> None:
        self._unread, self._written = values, list[Tensor]()

    def write(self, mean: Tensor, variance: Tensor) -> None:
        self._written += [mean.detach(), variance.detach()]

    def values(self) -> Float[Tensor, " k"]:
        """Everything written."""
        return torch.cat(self._written)

    def read(self, size: int) -> tuple[Tensor, Tensor] | None:
        """Mean and variance of the next layer; None without values."""
        if self._unread is None:
            return None
        mean, variance, self._unread = self._unread.split([size, size, len(self._unread) - 2 * size])
        return mean, variance


class PlainLayers:
    """The operations of a ResNet on activations (n, c, h, w) in the weights' data type.

    In training, `sizes` are those of the concatenated batches: BatchNorm takes its statistics over each batch, as
    separate passes would, while a convolution is one call for all. Without `sizes` it uses its running averages, or the
    `moments` of another pass; if it `gathers`, the statistics of the samples passed, which `moments` collects.
    """

    def __init__(
        self,
        sizes: Sequence[int] | None = None,
        noise: Noise | None = None,
        moments: Float[Tensor, " k"] | None = None,
        gathers: bool = False,
    ) -> None:
        self.sizes, self.noise, self.moments, self.gathers = sizes, noise, Moments(moments), gathers

    def stem(self, layer: nn.Conv2d, parts: Sequence[Float[Tensor, "_ 3 h w"]]) -> Tensor:
        """The first convolution, of batches of images."""
        return self._convolve(layer, torch.cat(list(parts)) if len(parts) > 1 else parts[0])

    def _convolve(self, layer: nn.Conv2d, x: Tensor) -> Tensor:
        return convolve(x, layer.weight, layer.stride[0], int(layer.padding[0]))

    def fork(self, layer: nn.Conv2d, shortcut: nn.Conv2d | None, x: Tensor) -> tuple[Tensor, Tensor]:
        """Both branches of a block: the convolution, and the shortcut, which has the same stride."""
        around = x if shortcut is None else self._convolve(shortcut, x)
        return self._convolve(layer, x), around

    def norm_relu(self, norm: nn.BatchNorm2d, x: Tensor) -> Tensor:
        """relu(BN(x)), after the stem."""
        return torch.relu(self._norm(norm, x))

    def relu_norm_drop(self, norm: nn.BatchNorm2d, x: Tensor, rate: Tensor, residual: Tensor | None = None) -> Tensor:
        """dropout(BN(relu(x))) + residual, in a block."""
        x = self._norm(norm, torch.relu(x))
        if self.noise is not None:
            x = dropout(x, rate, self.noise)
        return x if residual is None else x + residual

    def pool(self, x: Tensor, channels: int) -> Float[Tensor, "n c"]:  # noqa: ARG002
        return x.mean((-2, -1))

    def _norm(self, norm: nn.BatchNorm2d, x: Tensor) -> Tensor:
        if self.gathers:
            variance, mean = torch.var_mean(x, dim=(0, 2, 3), correction=0)
            self.moments.write(mean, variance)
            return _normalise(norm, x, mean, variance)
        layer = norm.running_mean, norm.running_var, norm.weight, norm.bias
        moments = self.moments.read(norm.num_features)
        if moments is not None:
            return _normalise(norm, x, *moments)
        if self.sizes is None:
            return F.batch_norm(x, *layer, False, 0.0, norm.eps)
        return torch.cat([F.batch_norm(part, *layer, True, 0.1, norm.eps) for part in x.split(list(self.sizes))])


def _normalise(norm: nn.BatchNorm2d, x: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
    """BatchNorm with these statistics, in one pass over the activations. For `F.batch_norm`, vmap would move the runs
    into the channels and back.
    """
    scale = norm.weight * torch.rsqrt(variance + norm.eps)
    return torch.addcmul((norm.bias - mean * scale)[:, None, None], x, scale[:, None, None])


class ChannelsLast:
    """The same operations in training on a GPU: activations (n, h, w, c)."""

    def __init__(self, sizes: Sequence[int], noise: Noise | None) -> None:
        self.first, self.noise, self.dtype = sizes[0], noise, precision.activations()
        self.multiple = 16 // self.dtype.itemsize
        self._summed: tuple[Tensor, Partial | None] | None = None
        """The last sum of a block and its shortcut, with the partial statistics for the BatchNorm that follows."""

    def stem(self, layer: nn.Conv2d, parts: Sequence[Tensor]) -> Tensor:
        stride, padding = layer.stride[0], int(layer.padding[0])
        channels = -(-(stride**2 * parts[0].shape[1]) // self.multiple) * self.multiple
        if stride == 1:
            images = pack_images(list(parts), channels, self.dtype)
            return convolution_cuda.convolve(images, layer.weight, stride, padding)
        fold = Fold(stride, padding, layer.kernel_size[0])
        images = pack_images(list(parts), channels, self.dtype, fold)
        return convolution_cuda.convolve_folded(images, layer.weight, fold)

    def fork(self, layer: nn.Conv2d, shortcut: nn.Conv2d | None, x: Tensor) -> tuple[Tensor, Tensor]:
        out, x = convolution_cuda.convolve_and_show(x, layer.weight, layer.stride[0], int(layer.padding[0]))
        if shortcut is None:
            return out, x
        weight = shortcut.weight.flatten(1)  # a 1×1 convolution is one product for all runs
        pads = [0, x.shape[-1] - weight.shape[1], 0, -len(weight) % self.multiple]
        weight = F.pad(weight, pads) if any(pads) else weight
        return out, (x.flatten(0, 2) @ weight.to(self.dtype).mT).unflatten(0, x.shape[:3])

    def norm_relu(self, norm: nn.BatchNorm2d, x: Tensor) -> Tensor:
        return self._norm(norm, x, None, relu_before=False, residual=None)

    def relu_norm_drop(self, norm: nn.BatchNorm2d, x: Tensor, rate: Tensor, residual: Tensor | None = None) -> Tensor:
        return self._norm(norm, x, rate, relu_before=True, residual=residual)

    def pool(self, x: Tensor, channels: int) -> Tensor:
        return x[..., :channels].float().mean((1, 2))

    def _norm(self, layer: nn.BatchNorm2d, x: Tensor, rate: Tensor | None, **options: Any) -> Tensor:
        """BatchNorm with `options` of `norm`; with a `rate`, dropout after it."""
        kept = None if self.noise is None or rate is None else self.noise.kept(rate, *x.shape)
        partial = self._summed[1] if self._summed is not None and self._summed[0] is x else None
        self._summed = norm(layer, x, self.first, kept=kept, rate=rate, partial=partial, **options)
        return self._summed[0]


class AnsweringChannelsLast(ChannelsLast):
    """Predictions on a GPU: BatchNorm as in `PlainLayers` without `sizes`."""

    def __init__(self, moments: Float[Tensor, " k"] | None = None, gathers: bool = False) -> None:
        super().__init__([0], None)
        self.moments, self.gathers = Moments(moments), gathers

    def _norm(self, layer: nn.BatchNorm2d, x: Tensor, rate: Tensor | None, **options: Any) -> Tensor:  # noqa: ARG002
        if self.gathers:
            out, mean, variance = norm_and_gather(layer, x, **options)
            self.moments.write(mean, variance)
            return out
        assert layer.running_mean is not None and layer.running_var is not None  # noqa: S101, PT018
        moments = self.moments.read(layer.num_features) or (layer.running_mean, layer.running_var)
        return norm_with(layer, x, *moments, **options)


Layers = PlainLayers | ChannelsLast


def training_layers(parts: Sequence[Float[Tensor, "_ 3 h w"]], noise: Noise | None) -> Layers:
    """For a training pass over these batches; without `noise` nothing is dropped."""
    sizes = [len(part) for part in parts]
    return ChannelsLast(sizes, noise) if channels_last(parts) else PlainLayers(sizes, noise)


def answering_layers(
    x: Float[Tensor, "n 3 h w"], moments: Float[Tensor, " k"] | None = None, gathers: bool = False
) -> PlainLayers | AnsweringChannelsLast:
    """For a pass without training; `moments` replace BatchNorm's running averages, or the pass `gathers` them."""
    if channels_last([x]) and not torch.is_grad_enabled():
        return AnsweringChannelsLast(moments, gathers)
    return PlainLayers(moments=moments, gathers=gathers)
