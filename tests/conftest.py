"""What every test stands on: shapes checked, one thread, no global random numbers, real data only where named."""

from __future__ import annotations

import os
import shutil
import signal
import sys
import types
import typing
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import jaxtyping
import numpy as np
import pytest
import torch
from beartype import beartype
from hypothesis import settings as hypothesis_settings


def _check_types(function: Callable[..., Any]) -> Callable[..., Any]:
    """beartype, for functions that take protocols too: it checks only protocols marked as checkable."""
    for value in getattr(function, "__globals__", {}).values():
        if isinstance(value, type) and getattr(value, "_is_protocol", False):
            typing.runtime_checkable(value)
    return beartype(function)


if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as in a shell's background, where children would inherit it
    signal.signal(signal.SIGINT, signal.default_int_handler)

# The hook imports its checker by name, and must be there before the first import of kcl.
_checker = types.ModuleType("kcl_test_typechecker")
_checker.check = _check_types  # type: ignore[attr-defined]
sys.modules[_checker.__name__] = _checker
jaxtyping.install_import_hook(["kcl.functional", "kcl.nets"], "kcl_test_typechecker.check")

# The same examples every time, and no complaint about a slow, shared machine.
hypothesis_settings.register_profile("kcl", deadline=None, derandomize=True, database=None)
hypothesis_settings.load_profile("kcl")


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("data") and not os.environ.get("KCL_DATA"):
        pytest.skip("KCL_DATA does not name a folder with real data")


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """Sums over one thread have one order. The command line sets its own number; it is put back."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(autouse=True)
def _no_global_random_numbers() -> Iterator[None]:
    """No test, and so nothing a test calls, may draw from PyTorch's or NumPy's global generator.

    hypothesis seeds NumPy's generator around its own tests, and puts it back.
    """
    torch_before, numpy_before = torch.random.get_rng_state(), np.random.get_state()  # noqa: NPY002
    yield
    torch_after, numpy_after = torch.random.get_rng_state(), np.random.get_state()  # noqa: NPY002
    assert torch.equal(torch_before, torch_after), "PyTorch's global generator was used"
    assert numpy_before[0] == numpy_after[0], "NumPy's global generator was changed"
    assert np.array_equal(numpy_before[1], numpy_after[1]), "NumPy's global generator was used"
    assert numpy_before[2:] == numpy_after[2:], "NumPy's global generator was used"


class DrawnNoise:
    """Noise from one seeded generator, in the data type asked for."""

    def __init__(self, seed: int, dtype: torch.dtype = torch.float32) -> None:
        self.generator = torch.Generator().manual_seed(seed)
        self.dtype = dtype

    def normal(self, *shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=self.generator, dtype=self.dtype)

    def uniform(self, *shape: int) -> torch.Tensor:
        return torch.rand(shape, generator=self.generator, dtype=self.dtype)

    def kept(self, rate: torch.Tensor, *shape: int) -> torch.Tensor:
        return self.uniform(*shape) >= rate


@pytest.fixture
def draw() -> DrawnNoise:
    """Random tensors for a test: float32, fixed seed."""
    return DrawnNoise(0)


@pytest.fixture
def draw64() -> DrawnNoise:
    """Random tensors for a test: float64, fixed seed."""
    return DrawnNoise(0, torch.float64)


@pytest.fixture
def make_noise() -> type[DrawnNoise]:
    """A source of noise with a seed of the test's own."""
    return DrawnNoise


@contextmanager
def _seeded(seed: int) -> Iterator[None]:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield


@pytest.fixture
def seeded() -> Callable[[int], AbstractContextManager[None]]:
    """A context in which PyTorch's initialisers may draw: seeded, and put back after."""
    return _seeded


@pytest.fixture(scope="session")
def data_dir() -> Path:
    """Where real data lie, MNIST at least; only for tests marked `data`."""
    return Path(os.environ["KCL_DATA"])


@pytest.fixture(scope="session")
def cifar_dir(data_dir: Path) -> Path:
    """Where real CIFAR-100 lies."""
    if not (data_dir / "cifar-100-python" / "train").is_file():
        pytest.skip("KCL_DATA does not hold cifar-100-python")
    return data_dir


@pytest.fixture(scope="session")
def miniimagenet_dir(data_dir: Path) -> Path:
    """Where real miniImageNet lies, as class folders."""
    if not (data_dir / "miniimagenet" / "n01532829").is_dir():
        pytest.skip("KCL_DATA does not hold miniimagenet")
    return data_dir


@pytest.fixture(scope="session")
def miniimagenet_cache(miniimagenet_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A cache that holds all of miniImageNet, decoded once for all tests; pytest would keep its 1.3 GB after them."""
    pytest.importorskip("PIL")
    from kcl.data import miniimagenet

    cache = tmp_path_factory.mktemp("decoded")
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("KCL_CACHE", str(cache))
        miniimagenet.MINIIMAGENET.load(miniimagenet_dir)
    yield cache
    shutil.rmtree(cache)


@pytest.fixture(scope="session")
def real_miniimagenet(miniimagenet_dir: Path, miniimagenet_cache: Path) -> Any:
    from kcl.data import miniimagenet

    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("KCL_CACHE", str(miniimagenet_cache))
        return miniimagenet.MINIIMAGENET.load(miniimagenet_dir)
