"""Compiling a traced step. On a CPU, PyTorch's compiler writes C++, so it needs a C++ compiler there."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule

from kcl.errors import KclError
from kcl.ops import torch_private


def compile_step(traced: Callable[..., Any], examples: Sequence[Tensor]) -> Callable[..., Any]:
    """A function of tensors like `examples`, compiled. On a CPU without the guards that `torch.compile` checks before
    every call: the tensors never change, and a step is short.
    """
    if not isinstance(traced, GraphModule):  # it could not be traced: `need_compiler` has warned
        return traced
    if examples[0].is_cuda:
        return torch.compile(traced, dynamic=False, fullgraph=True)
    return torch_private.compile_graph(traced, examples)


def need_compiler() -> None:
    """Refuse to compile steps for a CPU where PyTorch finds no C++ compiler."""
    if not torch_private.can_compile():
        warnings.warn(
            f"--compile on: PyTorch {torch.__version__} cannot compile steps, so they run uncompiled", stacklevel=2
        )
    elif not torch_private.cpp_compiler_found():
        raise KclError(
            "--compile on needs a C++ compiler on a CPU, and PyTorch finds none: install g++, or name another in the "
            "environment variable CXX"
        )
