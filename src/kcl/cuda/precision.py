"""Which products may use the tensor cores' TF32 format (10 bits of mantissa) on a GPU, and which may not.

The backbone and the random features may: the rounding is far below the noise of the draw. The Gram matrix may not:
K + λI is inverted, and its error would come back multiplied by the condition number. It is computed in float32, or on
the tensor cores with every number split in two, which is as exact to a few units in the last place.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from kcl.cuda import triton_available
from kcl.shapes import Float


@contextmanager
def products(tf32: bool) -> Iterator[None]:
    """Let float32 products and convolutions on the GPU use TF32, or forbid it."""
    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    before = matmul.allow_tf32, cudnn.allow_tf32
    matmul.allow_tf32 = cudnn.allow_tf32 = tf32
    try:
        yield
    finally:
        matmul.allow_tf32, cudnn.allow_tf32 = before


def gram(features: Float[Tensor, "*s m D"]) -> Float[Tensor, "*s m m"]:
    """ψψᵀ at float32's precision, whatever is allowed around it."""
    return torch.ops.kcl.gram(features) if features.is_cuda else features @ features.mT


@torch.library.custom_op("kcl::gram", mutates_args=())
def _gram(features: Tensor) -> Tensor:
    if features.dtype == torch.float32 and torch.backends.cuda.matmul.allow_tf32 and triton_available():
        return _gram_triton(features)
    with products(tf32=False):
        return features @ features.mT


def _gram_triton(features: Tensor) -> Tensor:
    from kcl.cuda import gram_kernel

    *runs, size, width = features.shape
    flat = features.reshape(-1, size, width)
    flat = flat if flat.stride(-1) == 1 else flat.contiguous()
    out = features.new_empty(*runs, size, size)
    tiles = -(-size // 64)
    gram_kernel.gram[(len(flat), tiles, tiles)](flat, out, size, width, flat.stride(0), flat.stride(1), 64, 32)
    return out


@_gram.register_fake
def _(features: Tensor) -> Tensor:
    return features.new_empty(*features.shape[:-1], features.shape[-2])
