"""What the ResNets are made of, twice: in plain PyTorch, and with the kernels a GPU trains and tests many runs with.

Both compute the same; the second keeps its activations channels last, in the data type asked for, with the channels
padded to a number the tensor cores are quick with.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from kcl.core.shapes import Float
from kcl.functional.noise import Noise, dropout
from kcl.ops import channels_last, convolution_cuda, precision
from kcl.ops.convolution import convolve
from kcl.ops.folding import Fold
from kcl.ops.norm_cuda import Partial, norm, norm_and_gather, norm_with
from kcl.ops.pack_images_cuda import pack_images


class Layers(Protocol):
    """The operations of a ResNet on activations whose layout is the implementation's own affair."""

    def stem(self, layer: nn.Conv2d, parts: Sequence[Float[Tensor, "_ 3 h w"]]) -> Tensor:
        """The first convolution, of images."""
        ...

    def fork(self, layer: nn.Conv2d, shortcut: nn.Conv2d | None, x: Tensor) -> tuple[Tensor, Tensor]:
        """Both ways through a block: the convolution, and the shortcut around it, which has the same stride."""
        ...

    def norm_relu(self, norm: nn.BatchNorm2d, x: Tensor) -> Tensor:
        """relu(BN(x)): the stem's."""
        ...

    def relu_norm_drop(self, norm: nn.BatchNorm2d, x: Tensor, rate: Tensor, residual: Tensor | None = None) -> Tensor:
        """dropout(BN(relu(x))) + residual: a block's."""
        ...

    def pool(self, x: Tensor, channels: int) -> Float[Tensor, "n c"]: ...


class Moments:
    """What one pass leaves of its BatchNorm statistics, and what another takes of them, layer by layer."""

    def __init__(self, given: Float[Tensor, " k"] | None = None) -> None:
        self._left, self._kept = given, list[Tensor]()

    def keep(self, mean: Tensor, variance: Tensor) -> None:
        self._kept += [mean.detach(), variance.detach()]

    def kept(self) -> Float[Tensor, " k"]:
        return torch.cat(self._kept)

    def take(self, size: int) -> tuple[Tensor, Tensor] | None:
        """Mean and variance of the next layer; None where nothing was given."""
        if self._left is None:
            return None
        mean, variance, self._left = self._left.split([size, size, len(self._left) - 2 * size])
        return mean, variance


class PlainLayers:
    """Activations (n, c, h, w) in the weights' own data type.

    Training, with the `sizes` of the parts of a batch, BatchNorm takes its statistics over each part on its own, as
    separate passes would, while the convolutions serve all parts in one call; otherwise it uses its running averages,
    or the `moments` of another pass.
    """

    def __init__(
        self, sizes: Sequence[int] | None, noise: Noise | None, moments: Float[Tensor, " k"] | None = None
    ) -> None:
        self.sizes, self.noise, self._given = sizes, noise, Moments(moments)

    def stem(self, layer: nn.Conv2d, parts: Sequence[Tensor]) -> Tensor:
        return self._convolve(layer, torch.cat(list(parts)) if len(parts) > 1 else parts[0])

    def _convolve(self, layer: nn.Conv2d, x: Tensor) -> Tensor:
        return convolve(x, layer.weight, layer.stride[0], int(layer.padding[0]))

    def fork(self, layer: nn.Conv2d, shortcut: nn.Conv2d | None, x: Tensor) -> tuple[Tensor, Tensor]:
        around = x if shortcut is None else self._convolve(shortcut, x)
        return self._convolve(layer, x), around

    def norm_relu(self, norm: nn.BatchNorm2d, x: Tensor) -> Tensor:
        return torch.relu(self._norm(norm, x))

    def relu_norm_drop(self, norm: nn.BatchNorm2d, x: Tensor, rate: Tensor, residual: Tensor | None = None) -> Tensor:
        x = self._norm(norm, torch.relu(x))
        if self.noise is not None:
            x = dropout(x, rate, self.noise)
        return x if residual is None else x + residual

    def pool(self, x: Tensor, channels: int) -> Tensor:  # noqa: ARG002
        return x.mean((-2, -1))

    def _norm(self, norm: nn.BatchNorm2d, x: Tensor) -> Tensor:
        given = norm.running_mean, norm.running_var, norm.weight, norm.bias
        moments = self._given.take(norm.num_features)
        if moments is not None:
            return _normalise(norm, x, *moments)
        if self.sizes is None:
            return F.batch_norm(x, *given, False, 0.0, norm.eps)
        return torch.cat([F.batch_norm(part, *given, True, 0.1, norm.eps) for part in x.split(list(self.sizes))])


class GatheringLayers(PlainLayers):
    """No training: BatchNorm uses the statistics of the samples passed, and they are kept, layer by layer."""

    def __init__(self) -> None:
        super().__init__(None, None)
        self.found = Moments()

    def _norm(self, norm: nn.BatchNorm2d, x: Tensor) -> Tensor:
        variance, mean = torch.var_mean(x, dim=(0, 2, 3), correction=0)
        self.found.keep(mean, variance)
        return _normalise(norm, x, mean, variance)


def _normalise(norm: nn.BatchNorm2d, x: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
    """BatchNorm with given statistics, in one pass over the activations. PyTorch's own would do, but vmap moves the
    runs of activations to their channels for it, and back.
    """
    scale = norm.weight * torch.rsqrt(variance + norm.eps)
    return torch.addcmul((norm.bias - mean * scale)[:, None, None], x, scale[:, None, None])


class ChannelsLast:
    """Training on a GPU: activations (n, h, w, c)."""

    def __init__(self, sizes: Sequence[int], noise: Noise | None) -> None:
        self.first, self.noise, self.dtype = sizes[0], noise, precision.activations()
        self.multiple = 16 // self.dtype.itemsize
        self._summed: tuple[Tensor, Partial | None] | None = None
        """The last sum of a block and a shortcut, with what the BatchNorm that follows it wants to know."""

    def stem(self, layer: nn.Conv2d, parts: Sequence[Tensor]) -> Tensor:
        stride, padding = layer.stride[0], int(layer.padding[0])
        channels = -(-(stride**2 * parts[0].shape[1]) // self.multiple) * self.multiple
        if stride == 1:
            return convolution_cuda.convolve(
                pack_images(list(parts), channels, self.dtype), layer.weight, stride, padding
            )
        fold = Fold(stride, padding, layer.kernel_size[0])
        return convolution_cuda.convolve_folded(
            pack_images(list(parts), channels, self.dtype, fold), layer.weight, fold
        )

    def fork(self, layer: nn.Conv2d, shortcut: nn.Conv2d | None, x: Tensor) -> tuple[Tensor, Tensor]:
        out, x = convolution_cuda.convolve_and_show(x, layer.weight, layer.stride[0], int(layer.padding[0]))
        if shortcut is None:
            return out, x
        weight = shortcut.weight.flatten(1)  # a 1×1 convolution is a product, for all runs at once
        pads = [0, x.shape[-1] - weight.shape[1], 0, -len(weight) % self.multiple]
        weight = F.pad(weight, pads) if any(pads) else weight
        return out, (x.flatten(0, 2) @ weight.to(self.dtype).mT).unflatten(0, x.shape[:3])

    def norm_relu(self, norm: nn.BatchNorm2d, x: Tensor) -> Tensor:
        return self._norm(norm, x, None, None, None, relu_before=False)

    def relu_norm_drop(self, norm: nn.BatchNorm2d, x: Tensor, rate: Tensor, residual: Tensor | None = None) -> Tensor:
        kept = None if self.noise is None else self.noise.kept(rate, *x.shape)
        return self._norm(norm, x, kept, rate, residual, relu_before=True)

    def pool(self, x: Tensor, channels: int) -> Tensor:
        return x[..., :channels].float().mean((1, 2))

    def _norm(
        self,
        layer: nn.BatchNorm2d,
        x: Tensor,
        kept: Tensor | None,
        rate: Tensor | None,
        residual: Tensor | None,
        relu_before: bool,
    ) -> Tensor:
        assert layer.running_mean is not None and layer.running_var is not None  # noqa: S101, PT018
        known = self._summed[1] if self._summed is not None and self._summed[0] is x else None
        self._summed = norm(
            x,
            layer.weight,
            layer.bias,
            (layer.running_mean, layer.running_var),
            self.first,
            layer.eps,
            relu_before=relu_before,
            relu_after=not relu_before,
            kept=kept,
            rate=rate,
            residual=residual,
            given=known,
            chains=residual is not None,
        )
        return self._summed[0]


class AnsweringChannelsLast(ChannelsLast):
    """Tests on a GPU: BatchNorm uses its running averages, or the `moments` of another pass."""

    def __init__(self, moments: Float[Tensor, " k"] | None = None) -> None:
        super().__init__([0], None)
        self._given = Moments(moments)

    def _norm(
        self,
        layer: nn.BatchNorm2d,
        x: Tensor,
        kept: Tensor | None,  # noqa: ARG002
        rate: Tensor | None,  # noqa: ARG002
        residual: Tensor | None,
        relu_before: bool,
    ) -> Tensor:
        return self._answer(layer, x, relu_before=relu_before, relu_after=not relu_before, residual=residual)

    def _answer(self, layer: nn.BatchNorm2d, x: Tensor, **how: Any) -> Tensor:
        assert layer.running_mean is not None and layer.running_var is not None  # noqa: S101, PT018
        moments = self._given.take(layer.num_features) or (layer.running_mean, layer.running_var)
        return norm_with(x, layer.weight, layer.bias, moments, layer.eps, **how)


class GatheringChannelsLast(AnsweringChannelsLast):
    """Tests on a GPU: BatchNorm uses the statistics of the samples passed, and they are kept, layer by layer."""

    def __init__(self) -> None:
        super().__init__()
        self.found = Moments()

    def _answer(self, layer: nn.BatchNorm2d, x: Tensor, **how: Any) -> Tensor:
        out, mean, variance = norm_and_gather(x, layer.weight, layer.bias, layer.eps, **how)
        self.found.keep(mean, variance)
        return out


def training_layers(parts: Sequence[Float[Tensor, "_ 3 h w"]], noise: Noise | None) -> Layers:
    """For a training pass over these batches; without `noise` nothing is dropped."""
    sizes = [len(part) for part in parts]
    return ChannelsLast(sizes, noise) if channels_last(parts) else PlainLayers(sizes, noise)


def answering_layers(x: Float[Tensor, "n 3 h w"], moments: Float[Tensor, " k"] | None) -> Layers:
    """For a pass without training; `moments` replace BatchNorm's running averages."""
    if channels_last([x]) and not torch.is_grad_enabled():
        return AnsweringChannelsLast(moments)
    return PlainLayers(None, None, moments)


def gathering_layers(x: Float[Tensor, "n 3 h w"]) -> GatheringLayers | GatheringChannelsLast:
    """For a pass whose BatchNorm statistics are collected."""
    if channels_last([x]) and not torch.is_grad_enabled():
        return GatheringChannelsLast()
    return GatheringLayers()
