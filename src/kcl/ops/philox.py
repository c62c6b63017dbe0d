"""Philox4x32-10 (Salmon et al., SC 2011): random numbers as a pure function of a key and a counter.

A run's noise at a step depends only on the run's key, the step and the position in the tensor. So it is the same
whatever other runs are trained with it, and whether or not the run was interrupted. Each counter gives four 32-bit
words.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable
from functools import cache
from importlib import resources
from typing import Any

import torch
from torch import Tensor

from kcl.core.shapes import Float, Int, Shaped
from kcl.ops import torch_private
from kcl.ops.operation import Backend, Operation, triton_available

_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_WEYL = (0x9E3779B9, 0xBB67AE85)
_MASK = 0xFFFFFFFF
NORMAL, UNIFORM, KEPT = 0, 1, 2


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


def draw(
    out: Shaped[Tensor, "s n"],
    key: Int[Tensor, "s 2"],
    step: Int[Tensor, ""],
    kind: int,
    rates: Float[Tensor, " s"] | None = None,
    first: int = 0,
) -> None:
    """Fill row r of `out` from key r at a step: with standard normals, with uniforms on [0, 1), or (KEPT) with booleans
    that are false at the run's rate. `first` is the first counter; each counter gives four draws.
    """
    blocks = -(-out.shape[1] // 4)
    index = torch.arange(first, first + blocks, device=out.device).expand(len(out), blocks)
    fixed = torch.full_like(index, kind)
    four = words(key, (index, step.expand_as(index), fixed, torch.zeros_like(index)))
    values = torch.stack(_normals(four) if kind == NORMAL else [_unit(word) for word in four], dim=-1)
    values = values.flatten(1)[:, : out.shape[1]]
    out.copy_(values if rates is None else values >= rates[:, None])


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


def draw_cpp(
    out: Shaped[Tensor, "s n"],
    key: Int[Tensor, "s 2"],
    step: Int[Tensor, ""],
    kind: int,
    rates: Float[Tensor, " s"] | None = None,
    first: int = 0,
) -> None:
    """`draw` in C++ (`philox.cpp`), several times as fast as PyTorch's generators on a CPU; normals may differ in their
    last digits. For runs whose steps are compiled, which need a C++ compiler anyway. PyTorch caches the library.
    """
    expected = torch.bool if kind == KEPT else torch.float32
    if out.dtype != expected or out.device.type != "cpu" or out.stride(1) != 1 or not key.is_contiguous():
        raise ValueError(f"cannot draw into {out.dtype} on {out.device} with strides {out.stride()}")
    if (kind == KEPT) != (rates is not None):
        raise ValueError("only KEPT has rates, and it needs them")
    rows, size = out.shape
    rate_pointer = None if rates is None else rates.data_ptr()
    tensors = out.data_ptr(), rows, size, out.stride(0), key.data_ptr(), step.data_ptr(), rate_pointer
    _kernel()(*tensors, first, kind, torch.get_num_threads())


@cache
def _kernel() -> Callable[..., None]:
    source = resources.files("kcl.ops").joinpath("philox.cpp").read_text(encoding="utf-8")
    function = torch_private.load_cpp(source).draw
    pointer, number = ctypes.c_void_p, ctypes.c_int64
    function.argtypes = [pointer, number, number, number, pointer, pointer, pointer, number, number, number]
    function.restype = None
    return function


def _draw_triton(*args: Any, **options: Any) -> None:
    from kcl.ops import kernels_triton

    kernels_triton.draw(*args, **options)


draw_philox = Operation(
    "draw_philox",
    draw,
    [
        Backend("C++", "cpu", draw_cpp, available=torch_private.can_load_cpp),
        Backend("Triton", "cuda", _draw_triton, available=triton_available),
    ],
)
