"""The Cholesky kernel of `cholesky.cu`, for matrices that fit the registers of one thread block.

PyTorch's batched routines take most of a millisecond for 200 × 200, and some of them cannot be captured in a CUDA
graph. The kernel gives every matrix a thread block that keeps it in registers; `benches/solve.py` compares it with
three alternatives. PyTorch compiles it at run time, once for each number of 16 × 16 blocks.
"""

from __future__ import annotations

from functools import cache
from importlib import resources
from typing import Any

import torch
from torch import Tensor

from kcl.ops import torch_private

LARGEST = 256
"""The largest matrix whose triangle fits the registers of one thread block."""


def _blocks(targets: Tensor) -> int:
    return -(-targets.shape[-2] // 16)


@cache
def _kernel(name: str, blocks: int) -> Any:
    source = resources.files("kcl.ops").joinpath("cholesky.cu").read_text(encoding="utf-8")
    return torch_private.compile_cuda(f"#define BLOCKS {blocks}\n{source}", name)


def _launch(name: str, targets: Tensor, *tensors: Tensor) -> None:
    size, classes = targets.shape[-2:]
    grid = (targets.numel() // (size * classes), -(-classes // 16), 1)
    _kernel(name, _blocks(targets))(grid, (256, 1, 1), [*tensors, size, classes])


# The launches are custom operators so that they can be traced and compiled around.


@torch.library.custom_op("kcl::factorise_and_solve", mutates_args=())
def factorise_and_solve(gram: Tensor, targets: Tensor, strength: Tensor) -> tuple[Tensor, Tensor]:
    gram, targets, strength = gram.contiguous(), targets.contiguous(), strength.contiguous()
    out, side = torch.empty_like(targets), 16 * _blocks(targets)
    factor = gram.new_empty(*gram.shape[:-2], side, side)
    _launch("factorise_and_solve", targets, gram, targets, strength, factor, out)
    return out, factor


@factorise_and_solve.register_fake
def _(gram: Tensor, targets: Tensor, strength: Tensor) -> tuple[Tensor, Tensor]:
    side = 16 * _blocks(targets)
    return targets.new_empty(targets.shape), gram.new_empty(*gram.shape[:-2], side, side)


@torch.library.custom_op("kcl::solve", mutates_args=())
def solve(factor: Tensor, targets: Tensor) -> Tensor:
    factor, targets = factor.contiguous(), targets.contiguous()
    out = torch.empty_like(targets)
    _launch("solve", targets, factor, targets, out)
    return out


@solve.register_fake
def _(factor: Tensor, targets: Tensor) -> Tensor:
    return targets.new_empty(targets.shape)
