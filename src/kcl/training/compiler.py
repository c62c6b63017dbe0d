"""What PyTorch's compiler needs of a machine without a GPU: it writes C++."""

from __future__ import annotations

from kcl.errors import KclError


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
