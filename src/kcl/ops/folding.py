"""A convolution of stride s over few channels, as one of stride 1 over s² times as many.

With three channels most of the tensor cores' work is wasted; they are fast with multiples of eight. Each s × s square
of pixels becomes one pixel with 3s² channels, and a kernel of side k becomes one of side ⌈k/s⌉.
"""

from __future__ import annotations

from typing import NamedTuple

import torch.nn.functional as F
from torch import Tensor

from kcl.core.shapes import Float


class Fold(NamedTuple):
    """The convolution to fold."""

    stride: int
    padding: int
    kernel: int

    @property
    def folded_kernel(self) -> int:
        return -(-self.kernel // self.stride)

    def side(self, pixels: int) -> int:
        """Side of the folded image, padding included."""
        return (pixels + 2 * self.padding - self.kernel) // self.stride + self.folded_kernel

    def weight(self, weight: Float[Tensor, "*s o c k k"]) -> Float[Tensor, "*s o fc q q"]:
        """Channels in the order of a folded image: row and column within the square, then the image's channel."""
        stride, side = self.stride, self.folded_kernel
        rest = side * stride - self.kernel
        squares = F.pad(weight, [0, rest, 0, rest]).unflatten(-1, (side, stride)).unflatten(-3, (side, stride))
        return squares.movedim((-3, -1), (-5, -4)).flatten(-5, -3)

    def unfolded(self, weight: Float[Tensor, "*s o fc q q"]) -> Float[Tensor, "*s o c k k"]:
        """The inverse of `weight`, for gradients."""
        squares = weight.unflatten(-3, (self.stride, self.stride, -1)).movedim((-5, -4), (-3, -1))
        return squares.flatten(-2).flatten(-3, -2)[..., : self.kernel, : self.kernel]


UNFOLDED = Fold(1, 0, 1)
"""Pixels stay as they are."""
