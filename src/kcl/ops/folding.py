"""Images as channels-last activations on a GPU; a convolution of stride s over few channels as one of stride 1 over s²
times as many.

With three channels most of the tensor cores' work is wasted; they are fast with multiples of eight. Each s × s square
of pixels becomes one pixel with 3s² channels, and a kernel of side k becomes one of side ⌈k/s⌉.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from kcl.core.shapes import Float
from kcl.ops.operation import runs_first


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


@torch.library.custom_op("kcl::pack_images", mutates_args=())
def _pack(parts: list[Tensor], channels: int, dtype: torch.dtype, fold: list[int]) -> Tensor:
    from kcl.ops import kernels_triton

    out, before = _empty(parts, channels, dtype, fold), 0
    samples, rows, columns = out.shape[1:4]
    stride, padding, _ = fold
    for part in parts:
        part_channels, height, width = part.shape[2:]
        grid = (-(-rows * columns // 256), part.shape[1], len(part))
        kernels_triton.pack[grid](
            part, out, part.stride(0), samples, before, height, width, rows * columns, columns, padding,
            part_channels, stride, channels, 1 << (channels - 1).bit_length(), 256,
        )  # fmt: skip
        before += part.shape[1]
    return out


def _empty(parts: list[Tensor], channels: int, dtype: torch.dtype, fold: list[int]) -> Tensor:
    runs, _, _, *sides = parts[0].shape
    samples = sum(part.shape[1] for part in parts)
    return parts[0].new_empty(runs, samples, *map(Fold(*fold).side, sides), channels, dtype=dtype)


_pack.register_fake(_empty)


class _Pack(torch.autograd.Function):
    """Images need no gradient."""

    @staticmethod
    def forward(channels: int, dtype: torch.dtype, fold: Fold, *parts: Tensor) -> Tensor:
        return torch.ops.kcl.pack_images([part.contiguous() for part in parts], channels, dtype, list(fold))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None: ...

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], channels: int, dtype: torch.dtype, fold: Fold, *parts: Tensor) -> Any:
        runs = [part.squeeze(1) for part in runs_first(info.batch_size, in_dims[3:], parts)]
        return _Pack.apply(channels, dtype, fold, *runs).unsqueeze(1), 0


def pack_images(parts: list[Tensor], channels: int, dtype: torch.dtype, fold: Fold = UNFOLDED) -> Tensor:
    """Batches of images (n, c, h, w), concatenated, as (n, h, w, channels): channels are padded with zeros, or the
    images folded for a convolution.
    """
    return _Pack.apply(channels, dtype, fold, *(part.unsqueeze(0) for part in parts)).squeeze(0)
