"""`philox.draw` on a CPU, by a kernel of its own (`philox.cpp`): several times as fast as PyTorch's generators there.

For runs whose steps are compiled: it needs the C++ compiler that these need too. PyTorch's compiler builds it and keeps
what it has built.
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
    """What `philox.draw` draws; normals may differ from its in their last digits."""
    expected = torch.bool if kind == KEPT else torch.float32
    if out.dtype != expected or out.device.type != "cpu" or out.stride(1) != 1 or not key.is_contiguous():
        raise ValueError(f"cannot draw into {out.dtype} on {out.device}, of strides {out.stride()}")
    if (kind == KEPT) != (rates is not None):
        raise ValueError("what dropout keeps has rates, and nothing else has")
    rows, size = out.shape
    given = None if rates is None else rates.data_ptr()
    tensors = out.data_ptr(), rows, size, out.stride(0), key.data_ptr(), step.data_ptr(), given
    _kernel()(*tensors, first, kind, torch.get_num_threads())


@cache
def _kernel() -> Callable[..., None]:
    source = resources.files("kcl.ops").joinpath("philox.cpp").read_text(encoding="utf-8")
    function = torch_private.load_cpp(source).draw
    pointer, number = ctypes.c_void_p, ctypes.c_int64
    function.argtypes = [pointer, number, number, number, pointer, pointer, pointer, number, number, number]
    function.restype = None
    return function
