"""Numeric operations with several implementations: one table, and one rule that chooses.

Every operation has a reference in plain PyTorch that runs on any device. Backends compute the same faster: in C++ on a
CPU, in CUDA or Triton on a GPU, or in a form that PyTorch's compiler handles better while a step is traced. A call
takes the first backend that is for the device of its first tensor, suits the arguments and is available on the machine
(`Operation`); otherwise the reference.

| file | content |
|---|---|
| `x.py` | reference of an operation and its entry for the table |
| `x.cpp`, `x.cu` | kernels of a backend in C++ or CUDA |
| `x_cuda.py`, `x_triton.py` | a longer backend for a GPU; Triton modules are imported when called |

To add an operation: write its reference, import it below, and give `tests/ops/test_table.py` example arguments.
To add a backend: one more `Backend` in the operation's entry. The test compares every backend with the reference.

The ResNets' layers are chosen as a whole, since their GPU kernels keep activations in another layout: `channels_last`.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from kcl.ops.cholesky import factorise_and_solve, solve
from kcl.ops.descent import descend
from kcl.ops.operation import Operation, triton_available
from kcl.ops.philox import draw_philox
from kcl.ops.precision import affine_rows, gram, inner, linear, rounded_matmul

__all__ = [
    "OPERATIONS",
    "affine_rows",
    "channels_last",
    "descend",
    "draw_philox",
    "factorise_and_solve",
    "gram",
    "inner",
    "linear",
    "rounded_matmul",
    "solve",
    "triton_available",
]
OPERATIONS = [each for each in list(globals().values()) if isinstance(each, Operation)]


def channels_last(parts: Sequence[Tensor]) -> bool:
    """Whether `convolution_cuda` and `norm_cuda` can compute a ResNet's pass over these batches of images: at most two,
    in float32 on a GPU, and no gradient of theirs is needed.
    """
    fits = all(part.is_cuda and part.dtype == torch.float32 and not part.requires_grad for part in parts)
    return fits and len(parts) <= 2 and triton_available()
