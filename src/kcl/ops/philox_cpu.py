"""`philox.draw` in C++ (`philox.cpp`): several times as fast as PyTorch's generators on a CPU.

For runs whose steps are compiled, which need a C++ compiler anyway. PyTorch builds the library and caches it.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import cache
from importlib import resources

import torch
from torch import Tensor

from kcl.core.shapes import Float, Int, Shaped
from kcl.ops import torch_private
from kcl.ops.philox import KEPT


def draw(
    out: Shaped[Tensor, "s n"],
    key: Int[Tensor, "s 2"],
    step: Int[Tensor, ""],
    kind: int,
    rates: Float[Tensor, " s"] | None = None,
    first: int = 0,
) -> None:
    """The same draws as `philox.draw`; normals may differ in their last digits."""
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
