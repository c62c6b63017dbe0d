"""Kernels in Triton and CUDA, and in C++ for steps that are compiled on a CPU: optional accelerators, each with a
PyTorch equivalent that gives the same numbers.
"""

from __future__ import annotations

import importlib.util
from functools import cache


@cache
def triton_available() -> bool:
    return importlib.util.find_spec("triton") is not None
