"""The benchmarks by name: which data, which stream."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from kcl.benchmarks.mnist import MovedPixels, PermutedPixels, RotatedPixels
from kcl.data import digits, mnist
from kcl.data.dataset import Dataset
from kcl.errors import KclError
from kcl.settings import nearest


class Benchmark(NamedTuple):
    description: str
    load: Callable[[Path | None, Callable[[str], None]], Dataset]
    stream: type[MovedPixels]


def _mnist(data_dir: Path | None, say: Callable[[str], None]) -> Dataset:
    return mnist.load(data_dir, say=say)


def _digits(data_dir: Path | None, say: Callable[[str], None]) -> Dataset:  # noqa: ARG001
    if data_dir is not None:
        raise KclError("the digits come with scikit-learn; --data-dir does not apply to them")
    return digits.load()


BENCHMARKS = {
    "permuted-mnist": Benchmark("MNIST, pixels permuted anew in every task after the first", _mnist, PermutedPixels),
    "rotated-mnist": Benchmark("MNIST, turned about 10 degrees further in every task", _mnist, RotatedPixels),
    "permuted-digits": Benchmark("permuted-mnist on scikit-learn's 8×8 digits", _digits, PermutedPixels),
    "rotated-digits": Benchmark("rotated-mnist on scikit-learn's 8×8 digits", _digits, RotatedPixels),
}


def find_benchmark(name: str) -> Benchmark:
    if name not in BENCHMARKS:
        raise KclError(f"unknown benchmark {name!r}; {nearest(name, list(BENCHMARKS))}")
    return BENCHMARKS[name]
