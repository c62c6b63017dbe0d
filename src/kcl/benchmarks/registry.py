"""The benchmarks by name: which data, which stream."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from kcl.benchmarks.moved_pixels import PermutedPixels, RotatedPixels
from kcl.benchmarks.split import SplitClasses
from kcl.benchmarks.task import TaskSequence
from kcl.core.settings import nearest
from kcl.data import cifar100, digits, image_folders, miniimagenet, mnist
from kcl.data.dataset import Dataset
from kcl.errors import KclError

Say = Callable[[str], None]


class Benchmark(NamedTuple):
    """`load(data_dir, say)` gives the data, `stream(dataset, tasks=, seed=, train_per_task=)` their tasks.

    Each may take further choices of the user by name; those of `load` with what is chosen where the user does not.
    """

    description: str
    load: Callable[..., Dataset]
    stream: Callable[..., TaskSequence]
    stream_choices: tuple[str, ...] = ()
    load_choices: Mapping[str, int] = MappingProxyType({})
    tasks: int | None = 20
    """How many tasks the benchmark is published with; None where that depends on the user's data."""

    def check_choices(self, name: str, given: Iterable[str]) -> None:
        """Refuse choices that this benchmark does not have."""
        for choice in given:
            if choice not in (*self.stream_choices, *self.load_choices):
                others = [other for other, b in BENCHMARKS.items() if choice in (*b.stream_choices, *b.load_choices)]
                option = "--" + choice.replace("_", "-")
                raise KclError(f"{option} does not apply to {name}; it goes with {', '.join(others)}")


def _mnist(data_dir: Path | None, say: Say) -> Dataset:
    return mnist.load(data_dir, say=say)


def _cifar100(data_dir: Path | None, say: Say) -> Dataset:
    return cifar100.load(data_dir, say=say)


def _miniimagenet(data_dir: Path | None, say: Say) -> Dataset:
    return miniimagenet.load(data_dir, say=say)


def _folder(data_dir: Path | None, say: Say, image_size: int) -> Dataset:
    if data_dir is None:
        raise KclError("split-folder needs --data-dir PATH, a folder that holds a folder of images for every class")
    return image_folders.load(data_dir, image_size, say=say)


def _digits(data_dir: Path | None, say: Say) -> Dataset:  # noqa: ARG001
    if data_dir is not None:
        raise KclError("the digits come with scikit-learn; --data-dir does not apply to them")
    return digits.load()


_SPLIT = ("ways", "class_order")
BENCHMARKS: dict[str, Benchmark] = {
    "permuted-mnist": Benchmark("MNIST, pixels permuted anew in every task after the first", _mnist, PermutedPixels),
    "rotated-mnist": Benchmark("MNIST, turned about 10 degrees further in every task", _mnist, RotatedPixels),
    "split-cifar100": Benchmark("CIFAR-100, 20 tasks of 5 classes each", _cifar100, SplitClasses, _SPLIT),
    "split-miniimagenet": Benchmark("miniImageNet, 20 tasks of 5 classes each", _miniimagenet, SplitClasses, _SPLIT),
    "split-folder": Benchmark(
        "your own images in --data-dir, one folder per class, 5 classes a task",
        _folder,
        SplitClasses,
        _SPLIT,
        {"image_size": image_folders.DEFAULT_SIDE},
        tasks=None,
    ),
    "permuted-digits": Benchmark("permuted-mnist on scikit-learn's 8×8 digits", _digits, PermutedPixels),
    "rotated-digits": Benchmark("rotated-mnist on scikit-learn's 8×8 digits", _digits, RotatedPixels),
    "split-digits": Benchmark(
        "scikit-learn's 8×8 digits, 2 tasks of 5 classes each", _digits, SplitClasses, _SPLIT, tasks=2
    ),
}


def find_benchmark(name: str) -> Benchmark:
    if name not in BENCHMARKS:
        raise KclError(f"unknown benchmark {name!r}; {nearest(name, list(BENCHMARKS))}")
    return BENCHMARKS[name]
