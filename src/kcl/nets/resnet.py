"""The image backbones: narrow ResNet18s for 32×32 (CIFAR-100) and 84×84 (miniImageNet) images."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from kcl.functional.convolution import convolve
from kcl.functional.noise import Noise, dropout
from kcl.nets.backbone import Backbone
from kcl.shapes import Float


class SplitBatchNorm(nn.BatchNorm2d):
    """BatchNorm that takes its statistics over each part of the batch on its own, as separate passes would.

    The convolutions around it then serve all parts in one call.
    """

    def forward(self, x: Tensor, parts: Sequence[int] | None = None) -> Tensor:
        if parts is None:
            return F.batch_norm(x, self.running_mean, self.running_var, self.weight, self.bias, False, 0.0, self.eps)
        normed = self._in_words if x.is_cuda else self._in_one
        return torch.cat([normed(part) for part in x.split(list(parts))])

    def _in_one(self, x: Tensor) -> Tensor:
        return F.batch_norm(x, self.running_mean, self.running_var, self.weight, self.bias, True, 0.1, self.eps)

    def _in_words(self, x: Tensor) -> Tensor:
        """The same, spelled out: a compiler fuses it with its neighbours, and stacked runs need no transposing."""
        assert self.running_mean is not None and self.running_var is not None  # noqa: S101, PT018
        variance, mean = torch.var_mean(x, dim=(0, 2, 3), correction=0)
        with torch.no_grad():
            count = x.numel() // x.shape[1]
            self.running_mean.mul_(0.9).add_(0.1 * mean)
            self.running_var.mul_(0.9).add_(0.1 * count / (count - 1) * variance)
        scale = self.weight * torch.rsqrt(variance + self.eps)
        return x * scale[:, None, None] + (self.bias - mean * scale)[:, None, None]


class Block(nn.Module):
    """relu(conv 3×3) → BN → dropout, + shortcut → relu → BN → dropout.

    One convolution per block, as in the authors' code (which defines a second and never calls it); the shortcut is a
    1×1 convolution without BN where the shape changes.
    """

    def __init__(self, channels_in: int, channels: int, stride: int) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(channels_in, channels, 3, stride, padding=1, bias=False)
        changes = stride != 1 or channels_in != channels
        self.shortcut = nn.Conv2d(channels_in, channels, 1, stride, bias=False) if changes else None
        self.inner_norm, self.outer_norm = SplitBatchNorm(channels), SplitBatchNorm(channels)

    def forward(self, x: Tensor, rate: Tensor, noise: Noise | None, parts: Sequence[int] | None) -> Tensor:
        inner = self.inner_norm(torch.relu(_convolve(self.convolution, x)), parts)
        if noise is not None:
            inner = dropout(inner, rate, noise)
        outer = torch.relu(inner + (x if self.shortcut is None else _convolve(self.shortcut, x)))
        outer = self.outer_norm(outer, parts)
        return outer if noise is None else dropout(outer, rate, noise)


def _convolve(layer: nn.Conv2d, x: Tensor) -> Tensor:
    return convolve(x, layer.weight, layer.stride[0], int(layer.padding[0]))


class ResNet18(Backbone):
    """Stem, four stages of two blocks, mean over the image. `widths` and `strides`: stem first, then the stages."""

    dropout: Tensor

    def __init__(self, widths: Sequence[int], strides: Sequence[int], stem: int, dropout: float = 0.02) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, widths[0], stem, strides[0], padding=1, bias=False)
        self.stem_norm = SplitBatchNorm(widths[0])
        blocks, channels = [], widths[0]
        for width, stride in zip(widths[1:], strides[1:], strict=True):
            blocks += [Block(channels, width, stride), Block(width, width, 1)]
            channels = width
        self.blocks = nn.ModuleList(blocks)
        self.features = channels
        self.drops = dropout > 0.0
        self.register_buffer("dropout", torch.tensor(dropout), persistent=False)

    def forward(self, x: Float[Tensor, "n 3 h w"], noise: Noise | None = None) -> Float[Tensor, "n d"]:
        return self._pass(x, noise, None if noise is None else [len(x)])

    def forward_parts(self, parts: Sequence[Float[Tensor, "_ 3 h w"]], noise: Noise) -> list[Float[Tensor, "_ d"]]:
        sizes = [len(part) for part in parts]
        return list(self._pass(torch.cat(list(parts)), noise, sizes).split(sizes))

    def _pass(self, x: Tensor, noise: Noise | None, parts: Sequence[int] | None) -> Tensor:
        x = torch.relu(self.stem_norm(_convolve(self.stem, x), parts))
        for block in self.blocks:
            x = block(x, self.dropout, noise if self.drops else None, parts)
        return x.mean((-2, -1))


def cifar_resnet(dropout: float = 0.02) -> ResNet18:
    """Width 20, 160 features."""
    return ResNet18((20, 20, 40, 80, 160), (1, 1, 2, 2, 2), stem=3, dropout=dropout)


def miniimagenet_resnet(dropout: float = 0.02) -> ResNet18:
    """A 7×7 stem, stride 2 in every stage, 512 features."""
    return ResNet18((64, 64, 128, 128, 512), (2, 2, 2, 2, 2), stem=7, dropout=dropout)
