"""An operation: its reference in plain PyTorch, and backends that compute the same faster on one device."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache
from typing import Any, Generic, ParamSpec, TypeVar

from torch import Tensor

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


@dataclass(frozen=True)
class Backend:
    """One faster implementation. Its arguments and its result are those of the operation."""

    name: str
    device: str
    """The type of device its tensors are on: "cpu" or "cuda"."""
    run: Callable[..., Any]
    suits: Callable[..., bool] = lambda *_, **__: True
    """Whether to use it for these arguments: their data type, their size, whether their step is being traced."""
    available: Callable[[], bool] = lambda: True
    """Whether this machine has what it needs besides the device: a compiler, a package, an interface of PyTorch."""
    tolerance: float = 1e-5
    """Largest difference from the reference, as a share of the largest value."""


class Operation(Generic[Arguments, Result]):
    """Calls the first backend for the first tensor's device that suits and is available, otherwise the reference."""

    def __init__(self, name: str, reference: Callable[Arguments, Result], backends: Sequence[Backend]) -> None:
        self.name, self.reference, self.backends = name, reference, backends
        self._on_cpu, self._on_cuda = ([each for each in backends if each.device == name] for name in ("cpu", "cuda"))

    def __call__(self, *args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
        # `is_cuda` is much faster than `device.type`.
        for backend in self._on_cuda if args[0].is_cuda else self._on_cpu:  # type: ignore[attr-defined]
            if backend.suits(*args, **kwargs) and backend.available():
                return backend.run(*args, **kwargs)
        return self.reference(*args, **kwargs)


_traced: ContextVar[bool] = ContextVar("traced", default=False)


@contextmanager
def tracing() -> Iterator[None]:
    """For the time in which a step is traced to be compiled."""
    token = _traced.set(True)
    try:
        yield
    finally:
        _traced.reset(token)


def traced(*_: Any, **__: Any) -> bool:
    """Whether the step is being traced: a compiler handles other forms of some operations better."""
    return _traced.get()


@cache
def triton_available() -> bool:
    return importlib.util.find_spec("triton") is not None


def runs_first(count: int, in_dims: Sequence[int | None], tensors: Sequence[Tensor]) -> list[Tensor]:
    """For vmap rules: every tensor with the runs as its first dimension; one that all runs share is expanded without a
    copy.
    """
    return [
        tensor.expand(count, *tensor.shape) if dim is None else tensor.movedim(dim, 0)
        for tensor, dim in zip(tensors, in_dims, strict=True)
    ]
