"""Every private interface of PyTorch that kcl uses, each with a fallback.

Private interfaces may change or vanish in any release. Nothing else in kcl imports one (a test checks that), so this
is the only file to adapt. Interfaces are looked up when they are needed: importing this module loads no compiler.

| interface | used for | without it |
|---|---|---|
| `torch._inductor.compile` | compiled steps on a CPU | `torch.compile`; uncompiled without any inductor |
| `torch._inductor.cpp_builder.get_cpp_compiler` | finding a C++ compiler | `$CXX` or `g++` on the search path |
| `torch._inductor.codecache.CppCodeCache` | Philox in C++ | Philox in PyTorch |
| `torch.fx.experimental.proxy_tensor.make_fx` | tracing steps | steps run uncompiled, with a warning |
| `torch.cuda._compile_kernel` | the Cholesky kernel | `torch.linalg` |
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import shutil
import warnings
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule

from kcl.errors import KclError


def _private(module: str, name: str) -> Any:
    """An attribute of a module, or None where this PyTorch does not have it."""
    try:
        return getattr(importlib.import_module(module), name, None)
    except ImportError:
        return None


# Compiling


def make_fx(function: Callable[..., Any]) -> Callable[..., Callable[..., Any]]:
    """make_fx(function)(*examples) is a `GraphModule` of everything that function(*examples) computes.

    Without the interface it is the function itself, which `compile_step` leaves uncompiled.
    """
    trace = _private("torch.fx.experimental.proxy_tensor", "make_fx")
    return (lambda *_: function) if trace is None else trace(function)


def _has_inductor() -> bool:
    return importlib.util.find_spec("torch._inductor") is not None


def compile_step(traced: Callable[..., Any], examples: Sequence[Tensor]) -> Callable[..., Any]:
    """A traced function of tensors like `examples`, compiled. On a CPU without the guards that `torch.compile` checks
    before every call: the tensors never change, and a step is short.

    Without the interface for that: `torch.compile`, which gives the same numbers. Without a compiler: as it is.
    """
    if not isinstance(traced, GraphModule):  # it could not be traced: `need_compiler` has warned
        return traced
    compile_alone = _private("torch._inductor", "compile")
    if compile_alone is not None and not examples[0].is_cuda:
        return compile_alone(traced, list(examples))
    return torch.compile(traced, dynamic=False, fullgraph=True) if _has_inductor() else traced


def need_compiler() -> None:
    """Refuse to compile steps for a CPU where PyTorch finds no C++ compiler, in which its compiler writes."""
    if _private("torch.fx.experimental.proxy_tensor", "make_fx") is None or not _has_inductor():
        warnings.warn(
            f"--compile on: PyTorch {torch.__version__} cannot compile steps, so they run uncompiled", stacklevel=2
        )
    elif not _cpp_compiler_found():
        raise KclError(
            "--compile on needs a C++ compiler on a CPU, and PyTorch finds none: install g++, or name another in the "
            "environment variable CXX"
        )


def _cpp_compiler_found() -> bool:
    """Whether there is a C++ compiler. Without the interface: whether `$CXX` or g++ is on the search path."""
    find = _private("torch._inductor.cpp_builder", "get_cpp_compiler")
    if find is None:
        return shutil.which(os.environ.get("CXX", "g++")) is not None
    missing = _private("torch._inductor.exc", "InvalidCxxCompiler") or RuntimeError
    try:
        find()
    except missing:
        return False
    return True


# Kernels


@cache
def can_load_cpp() -> bool:
    """Whether `load_cpp` works: PyTorch has its cache of compiled C++, and there is a compiler."""
    return _private("torch._inductor.codecache", "CppCodeCache") is not None and _cpp_compiler_found()


def load_cpp(source: str) -> Any:
    """C++ source as a `ctypes` library, built once and kept in PyTorch's cache."""
    with warnings.catch_warnings(action="ignore"):  # PyTorch's compiler warns about its own internals
        return _private("torch._inductor.codecache", "CppCodeCache").load(source)


def can_compile_cuda() -> bool:
    """Whether `compile_cuda` works (PyTorch 2.8 and later)."""
    return hasattr(torch.cuda, "_compile_kernel")


def compile_cuda(source: str, name: str) -> Any:
    """The kernel of this name in CUDA C source, compiled at run time."""
    return torch.cuda._compile_kernel(source, name)


# In place of `torch.utils._pytree`, for nested tuples, lists and dicts


def tree_map(function: Callable[..., Any], tree: Any) -> Any:
    """The same containers with function(leaf) for every leaf."""
    if isinstance(tree, dict):
        return type(tree)((key, tree_map(function, child)) for key, child in tree.items())
    if isinstance(tree, (tuple, list)):
        children = [tree_map(function, child) for child in tree]
        return type(tree)(*children) if hasattr(tree, "_fields") else type(tree)(children)
    return function(tree)


def tree_flatten(tree: Any) -> tuple[list[Any], Any]:
    """The leaves in order, and what `tree_unflatten` needs to put them back."""
    leaves: list[Any] = []
    tree_map(leaves.append, tree)
    return leaves, tree


def tree_unflatten(leaves: Sequence[Any], structure: Any) -> Any:
    following = iter(leaves)
    return tree_map(lambda _: next(following), structure)
