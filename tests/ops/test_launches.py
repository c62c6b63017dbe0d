"""Where there is no GPU: every launch of a Triton kernel fits the kernel's signature."""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

from kcl import ops
from kcl.ops import descend, norm_cuda, philox, precision
from kcl.ops.folding import Fold, pack_images
from kcl.ops.precision import products


class _Kernel:
    """A kernel whose launches are bound to its parameters and noted."""

    launches: list[str]

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
        assert 1 <= len(grid) <= 3
        return self._launch

    def _launch(self, *args: Any, num_warps: int = 4, **constants: Any) -> None:
        inspect.signature(self.function).bind(*args, **constants)
        self.launches.append(self.function.__name__)


@pytest.fixture
def launches(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of launched kernels, in order."""
    triton, language = ModuleType("triton"), ModuleType("triton.language")
    triton.jit, triton.language, language.constexpr = _Kernel, language, None  # type: ignore[attr-defined]
    names = [path.stem for path in Path(ops.__file__).parent.glob("*_triton.py")]
    with monkeypatch.context() as patch:  # only while our modules are imported: PyTorch must not see it
        patch.setitem(sys.modules, "triton", triton)
        patch.setitem(sys.modules, "triton.language", language)
        for name in names:
            patch.delitem(sys.modules, f"kcl.ops.{name}", raising=False)
            patch.setattr(ops, name, None, raising=False)
        modules = {name: importlib.import_module(f"kcl.ops.{name}") for name in names}
        for name in names:
            del sys.modules[f"kcl.ops.{name}"]
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, f"kcl.ops.{name}", module)
        monkeypatch.setattr(ops, name, module, raising=False)
    _Kernel.launches = []
    return _Kernel.launches


RUNS, SAMPLES, CHANNELS = 3, 5, 6


def _norm_arguments(draw: Any) -> tuple[torch.Tensor, ...]:
    x = draw.normal(RUNS, SAMPLES, 4, 4, CHANNELS + 2)
    return x, draw.normal(RUNS, CHANNELS), draw.normal(RUNS, CHANNELS)


def _layer(weight: torch.Tensor, bias: torch.Tensor, mean: Any = None, variance: Any = None) -> Any:
    return SimpleNamespace(weight=weight, bias=bias, running_mean=mean, running_var=variance, eps=1e-5)


@pytest.mark.parametrize(("kept", "residual"), [(False, False), (True, False), (False, True), (True, True)])
def test_norm(launches: list[str], draw: Any, kept: bool, residual: bool) -> None:
    x, weight, bias = (tensor.requires_grad_() for tensor in _norm_arguments(draw))
    running, rate = (torch.zeros(RUNS, CHANNELS), torch.ones(RUNS, CHANNELS)), torch.full((RUNS,), 0.1)
    extra = {
        "kept": x > 0 if kept else None,
        "rate": rate if kept else None,
        "residual": x.detach() if residual else None,
    }

    def one(x: Any, weight: Any, bias: Any, running: Any, extra: Any) -> Any:
        layer = _layer(weight, bias, *running)
        out, partial = norm_cuda.norm(layer, x, 2, relu_before=True, **extra)
        return norm_cuda.norm(layer, out, 2, relu_before=True, partial=partial)[0]

    dims = {name: None if value is None else 0 for name, value in extra.items()}
    torch.func.vmap(one, in_dims=(0, 0, 0, 0, dims))(x, weight, bias, running, extra).sum().backward()
    moments = [] if residual else ["moments"]
    forward = ["moments", "statistics", "forward", *moments, "statistics", "forward"]
    assert launches == forward + ["sums", "totals", "backward"] * 2


def test_norm_at_test(launches: list[str], draw: Any) -> None:
    arguments, options = _norm_arguments(draw), {"relu_before": True, "residual": None}
    torch.func.vmap(lambda x, *parameters: norm_cuda.norm_and_gather(_layer(*parameters), x, **options))(*arguments)
    assert launches == ["moments", "statistics", "forward"]
    moments = torch.zeros(RUNS, CHANNELS), torch.ones(RUNS, CHANNELS)
    torch.func.vmap(
        lambda x, weight, bias, *moments: norm_cuda.norm_with(_layer(weight, bias), x, *moments, **options)
    )(*arguments, *moments)
    assert launches[3:] == ["forward"]


@pytest.mark.parametrize("fold", [Fold(1, 0, 1), Fold(2, 1, 7)], ids=str)
def test_pack_images(launches: list[str], draw: Any, fold: Fold) -> None:
    parts = draw.normal(RUNS, 2, 3, 9, 9), draw.normal(RUNS, 4, 3, 9, 9)
    out = torch.func.vmap(lambda *parts: pack_images(list(parts), 16, torch.bfloat16, fold))(*parts)
    assert (out.shape, out.dtype) == ((RUNS, 6, fold.side(9), fold.side(9), 16), torch.bfloat16)
    assert launches == ["pack", "pack"]


def test_gram(launches: list[str], draw: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    assert ops.kernels_triton.gram(draw.normal(2, 3, 7, 5)).shape == (2, 3, 7, 7)
    assert launches == ["_gram"]
    monkeypatch.setattr(precision, "triton_available", lambda: True)
    with products("tf32"):
        torch.ops.kcl.gram(draw.normal(7, 5))
    assert launches == ["_gram"]  # it is for a GPU alone


@pytest.mark.parametrize("kind", [philox.NORMAL, philox.UNIFORM, philox.KEPT])
def test_draws(launches: list[str], kind: int) -> None:
    out = torch.empty(2, 400, dtype=torch.bool if kind == philox.KEPT else torch.float32)
    rates = torch.tensor([0.1, 0.2]) if kind == philox.KEPT else None
    ops.kernels_triton.draw(out, torch.tensor([[1, 2], [3, 4]]), torch.tensor([5]), kind, rates, 8)
    assert launches == ["_draw"]


def test_descend(launches: list[str], draw: Any) -> None:
    numbers = [draw.uniform(2, 1) for _ in range(2)]
    descend.backends[0].run(*(draw.normal(2, 50) for _ in range(3)), torch.ones(2, 1, dtype=torch.bool), *numbers)
    assert launches == ["descend"]
