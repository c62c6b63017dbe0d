"""The images of many runs as channels-last activations on a GPU: converted, padded and, if need be, folded."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from kcl.ops.folding import UNFOLDED, Fold
from kcl.ops.stacking import runs_first


@torch.library.custom_op("kcl::pack_images", mutates_args=())
def _pack(parts: list[Tensor], channels: int, dtype: torch.dtype, fold: list[int]) -> Tensor:
    from kcl.ops import pack_images_triton as kernel

    out, before = _empty(parts, channels, dtype, fold), 0
    samples, rows, columns = out.shape[1:4]
    stride, padding, _ = fold
    for part in parts:
        part_channels, height, width = part.shape[2:]
        grid = (-(-rows * columns // 256), part.shape[1], len(part))
        kernel.pack[grid](
            part, out, part.stride(0), samples, before, height, width, rows * columns, columns, padding,
            part_channels, stride, channels, 1 << (channels - 1).bit_length(), 256,
        )  # fmt: skip
        before += part.shape[1]
    return out


def _empty(parts: list[Tensor], channels: int, dtype: torch.dtype, fold: list[int]) -> Tensor:
    runs, _, _, *sides = parts[0].shape
    samples = sum(part.shape[1] for part in parts)
    return parts[0].new_empty(runs, samples, *map(Fold(*fold).side, sides), channels, dtype=dtype)


@_pack.register_fake
def _(parts: list[Tensor], channels: int, dtype: torch.dtype, fold: list[int]) -> Tensor:
    return _empty(parts, channels, dtype, fold)


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
