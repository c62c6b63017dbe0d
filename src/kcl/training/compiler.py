"""PyTorch's compiler, and what it needs of a machine without a GPU: there it writes C++."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule

from kcl.errors import KclError


def compile_step(traced: GraphModule, given: Sequence[Tensor]) -> Callable[..., Any]:
    """A function of tensors like these, compiled. For a CPU without what `torch.compile` looks at before every call:
    the tensors never change, and a step is short.
    """
    if given[0].is_cuda:
        return torch.compile(traced, dynamic=False, fullgraph=True)
    from torch._inductor import compile as compile_alone

    return compile_alone(traced, list(given))


def need_compiler() -> None:
    """Refuse to compile steps for a CPU where PyTorch finds no C++ compiler."""
    from torch._inductor.cpp_builder import get_cpp_compiler
    from torch._inductor.exc import InvalidCxxCompiler

    try:
        get_cpp_compiler()
    except InvalidCxxCompiler:
        raise KclError(
            "--compile on needs a C++ compiler on a CPU, and PyTorch finds none: install g++, or name another in the "
            "environment variable CXX"
        ) from None
