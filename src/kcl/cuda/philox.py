"""Philox4x32-10 (Salmon et al., SC 2011): random numbers as a pure function of a key and a counter.

A run's noise at a step is a function of the run's key, the step and the place in the tensor alone, so it is the same
whichever runs are beside it and whether or not the run was interrupted. Each counter gives four 32-bit words.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from kcl.cuda import triton_available
from kcl.shapes import Float, Int

_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_WEYL = (0x9E3779B9, 0xBB67AE85)
_MASK = 0xFFFFFFFF
NORMAL, UNIFORM = 0, 1


def words(key: Int[Tensor, "s 2"], counter: tuple[Tensor, Tensor, Tensor, Tensor]) -> tuple[Tensor, ...]:
    """Four words per counter. All values are 32-bit numbers held in int64."""
    c0, c1, c2, c3 = counter
    k0, k1 = key[:, :1], key[:, 1:]
    for _ in range(10):
        a, b = c0 * _MULTIPLIERS[0], c2 * _MULTIPLIERS[1]  # wraps modulo 2⁶⁴, as unsigned arithmetic would
        c0, c1, c2, c3 = (
            ((b >> 32) & _MASK) ^ c1 ^ k0,
            b & _MASK,
            ((a >> 32) & _MASK) ^ c3 ^ k1,
            a & _MASK,
        )
        k0, k1 = (k0 + _WEYL[0]) & _MASK, (k1 + _WEYL[1]) & _MASK
    return c0, c1, c2, c3


def draw(out: Float[Tensor, "s n"], key: Int[Tensor, "s 2"], step: Int[Tensor, ""], kind: int) -> None:
    """Fill `out` with standard normals or with uniforms on [0, 1), row r from key r, at a step."""
    blocks = -(-out.shape[1] // 4)
    if out.is_cuda and triton_available():
        from kcl.cuda import philox_kernel

        philox_kernel.draw[(len(out), -(-blocks // 1024))](out, key, step, out.shape[1], out.stride(0), kind, 1024)
        return
    index = torch.arange(blocks, device=out.device).expand(len(out), blocks)
    fixed = torch.full_like(index, kind)
    four = words(key, (index, step.expand_as(index), fixed, torch.zeros_like(index)))
    values = torch.stack(_normals(four) if kind == NORMAL else [_unit(word) for word in four], dim=-1)
    out.copy_(values.flatten(1)[:, : out.shape[1]])


def _unit(word: Tensor) -> Tensor:
    """The top 24 bits as a number in [0, 1): exact in float32."""
    return (word >> 8).float() * 2.0**-24


def _normals(four: tuple[Tensor, ...]) -> list[Tensor]:
    """Box–Muller on two pairs; 1 − u keeps the logarithm's argument in (0, 1]."""
    values = []
    for first, second in (four[:2], four[2:]):
        radius = torch.sqrt(-2.0 * torch.log(1.0 - _unit(first)))
        angle = 2.0 * math.pi * _unit(second)
        values += [radius * torch.cos(angle), radius * torch.sin(angle)]
    return values
