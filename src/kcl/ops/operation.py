"""An operation: its reference in plain PyTorch, and backends that compute the same faster on one device."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Generic, ParamSpec, TypeVar

from kcl.ops import torch_private

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


def _always(*_: Any, **__: Any) -> bool:
    return True


@dataclass(frozen=True)
class Backend:
    """One faster implementation. Its arguments and its result are those of the operation."""

    name: str
    device: str
    """The type of device its tensors are on: cpu or cuda."""
    run: Callable[..., Any]
    suits: Callable[..., bool] = _always
    """Whether to use it for these arguments: their data type, their size, whether their step is being traced."""
    available: Callable[[], bool] = _always
    """Whether this machine has what it needs besides the device: a compiler, a package, an interface of PyTorch."""
    tolerance: float = 1e-5
    """Largest difference from the reference, as a share of the largest value."""


@dataclass(frozen=True)
class Operation(Generic[Arguments, Result]):
    """Calls the first backend for the first tensor's device that suits and is available, otherwise the reference."""

    name: str
    reference: Callable[Arguments, Result]
    backends: Sequence[Backend]

    def __call__(self, *args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
        device = "cuda" if args[0].is_cuda else "cpu"  # type: ignore[attr-defined]  # much faster than device.type
        for backend in self.backends:
            if backend.device == device and backend.suits(*args, **kwargs) and backend.available():
                return backend.run(*args, **kwargs)
        return self.reference(*args, **kwargs)


def lazy(module: str, function: str) -> Callable[..., Any]:
    """A function of a module in `kcl.ops` that is imported when it is called: Triton need not be installed."""

    def call(*args: Any, **kwargs: Any) -> Any:
        return getattr(importlib.import_module(f"kcl.ops.{module}"), function)(*args, **kwargs)

    return call


def traced(*_: Any, **__: Any) -> bool:
    """Whether the arguments belong to a step that is being traced to be compiled."""
    return torch_private.tracing()


@cache
def triton_available() -> bool:
    return importlib.util.find_spec("triton") is not None
