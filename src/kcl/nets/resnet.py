"""The image backbones: narrow ResNet18s for 32×32 (CIFAR-100) and 84×84 (miniImageNet) images."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from kcl.core.shapes import Float
from kcl.errors import KclError
from kcl.functional.noise import Noise
from kcl.nets.backbone import Backbone
from kcl.nets.layers import Layers, answering_layers, training_layers


class Block(nn.Module):
    """relu(conv 3×3) → BN → dropout, + shortcut → relu → BN → dropout.

    One convolution per block, as in the authors' code (which defines a second but never calls it). Where the shape
    changes, the shortcut is a 1×1 convolution without BN.
    """

    def __init__(self, channels_in: int, channels: int, stride: int) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(channels_in, channels, 3, stride, padding=1, bias=False)
        changes = stride != 1 or channels_in != channels
        self.shortcut = nn.Conv2d(channels_in, channels, 1, stride, bias=False) if changes else None
        self.inner_norm, self.outer_norm = nn.BatchNorm2d(channels), nn.BatchNorm2d(channels)

    def forward(self, x: Tensor, rate: Tensor, layers: Layers) -> Tensor:
        convolved, shortcut = layers.fork(self.convolution, self.shortcut, x)
        inner = layers.relu_norm_drop(self.inner_norm, convolved, rate, shortcut)
        return layers.relu_norm_drop(self.outer_norm, inner, rate)


class ResNet18(Backbone):
    """Stem, four stages of two blocks, mean over the image. `widths` and `strides`: stem first, then the stages.

    The features of the last `feature_stages` stages are concatenated.
    """

    dropout: Tensor
    gathers = True

    def __init__(
        self,
        widths: Sequence[int],
        strides: Sequence[int],
        stem: int,
        dropout: float = 0.02,
        feature_stages: int = 1,
    ) -> None:
        super().__init__()
        if not 1 <= feature_stages < len(widths):
            raise KclError(
                f"feature_stages must be from 1 to {len(widths) - 1}, the stages of this backbone, not {feature_stages}"
            )
        self.stem = nn.Conv2d(3, widths[0], stem, strides[0], padding=1, bias=False)
        self.stem_norm = nn.BatchNorm2d(widths[0])
        blocks, channels = [], widths[0]
        for width, stride in zip(widths[1:], strides[1:], strict=True):
            blocks += [Block(channels, width, stride), Block(width, width, 1)]
            channels = width
        self.blocks = nn.ModuleList(blocks)
        self.parts = tuple(widths[-feature_stages:])
        self.features = sum(self.parts)
        self.drops = dropout > 0.0
        self.register_buffer("dropout", torch.tensor(dropout), persistent=False)

    def forward(
        self, x: Float[Tensor, "n 3 h w"], noise: Noise | None = None, moments: Float[Tensor, " k"] | None = None
    ) -> Float[Tensor, "n d"]:
        """`moments` replace BatchNorm's running averages."""
        if noise is None:
            return self._pass([x], answering_layers(x, moments))
        return self.forward_parts([x], noise)[0]

    def gather(self, x: Float[Tensor, "n 3 h w"]) -> tuple[Float[Tensor, "n d"], Float[Tensor, " k"]]:
        """Features of a set, with BatchNorm statistics of that set, and these statistics as `moments` for other
        samples.
        """
        layers = answering_layers(x, gathers=True)
        return self._pass([x], layers), layers.moments.values()

    def forward_parts(self, parts: Sequence[Float[Tensor, "_ 3 h w"]], noise: Noise) -> list[Float[Tensor, "_ d"]]:
        layers = training_layers(parts, noise if self.drops else None)
        return list(self._pass(parts, layers).split([len(part) for part in parts]))

    def _pass(self, parts: Sequence[Tensor], layers: Layers) -> Tensor:
        x = layers.norm_relu(self.stem_norm, layers.stem(self.stem, parts))
        last: list[Tensor] = []
        for index, block in enumerate(self.blocks):
            x = block(x, self.dropout, layers)
            if index % 2:  # the second block ends a stage
                last = [*last, x][-len(self.parts) :]
        pooled = [layers.pool(stage, width) for stage, width in zip(last, self.parts, strict=True)]
        return torch.cat(pooled, dim=-1) if len(pooled) > 1 else pooled[0]


def cifar_resnet(dropout: float = 0.02, feature_stages: int = 1) -> ResNet18:
    """Width 20, 160 features of the last stage."""
    return ResNet18((20, 20, 40, 80, 160), (1, 1, 2, 2, 2), 3, dropout, feature_stages)


def miniimagenet_resnet(dropout: float = 0.02, feature_stages: int = 1) -> ResNet18:
    """A 7×7 stem, stride 2 in every stage, 512 features of the last stage."""
    return ResNet18((64, 64, 128, 128, 512), (2, 2, 2, 2, 2), 7, dropout, feature_stages)
