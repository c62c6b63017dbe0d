"""Datasets and benchmarks by name. A benchmark says which data and which stream; adding one is a line here."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from kcl.benchmarks.moved_pixels import PermutedPixels, RotatedPixels
from kcl.benchmarks.split import SplitClasses
from kcl.benchmarks.task import Stream
from kcl.core.settings import nearest
from kcl.data import image_folders
from kcl.data.cifar100 import CIFAR100
from kcl.data.dataset import Dataset
from kcl.data.digits import DIGITS
from kcl.data.file_cache import Say
from kcl.data.miniimagenet import MINIIMAGENET
from kcl.data.mnist import MNIST
from kcl.data.source import DataSource
from kcl.errors import KclError

STREAM_ARGUMENTS = ("dataset", "tasks", "seed", "train_per_task")
"""What every stream takes."""


class Benchmark(NamedTuple):
    """`load(data_dir, say)` gives the data, `stream(dataset, tasks=, seed=, train_per_task=)` their tasks.

    Further arguments of either, which have defaults, are choices of the user; those of `load` are keyword-only.
    """

    description: str
    load: Callable[..., Dataset]
    stream: Callable[..., Stream]
    tasks: int | None
    """Tasks of the published benchmark; None if that depends on the user's data."""

    @property
    def stream_choices(self) -> tuple[str, ...]:
        return tuple(name for name in inspect.signature(self.stream).parameters if name not in STREAM_ARGUMENTS)

    @property
    def load_choices(self) -> Mapping[str, Any]:
        """With their defaults."""
        parameters = inspect.signature(self.load).parameters.values()
        return {each.name: each.default for each in parameters if each.kind is each.KEYWORD_ONLY}

    def check_choices(self, name: str, choices: Iterable[str]) -> None:
        """Refuse choices that this benchmark does not have."""
        for choice in choices:
            if choice not in (*self.stream_choices, *self.load_choices):
                others = [other for other, b in BENCHMARKS.items() if choice in (*b.stream_choices, *b.load_choices)]
                option = "--" + choice.replace("_", "-")
                raise KclError(f"{option} does not apply to {name}; it applies to {', '.join(others)}")


def _folder(data_dir: Path | None, say: Say, *, image_size: int = image_folders.DEFAULT_SIDE) -> Dataset:
    if data_dir is None:
        raise KclError("split-folder needs --data-dir PATH, a folder that holds a folder of images for every class")
    return image_folders.load(data_dir, image_size, say)


DATASETS: dict[str, DataSource] = {source.name: source for source in (MNIST, CIFAR100, MINIIMAGENET, DIGITS)}
BENCHMARKS: dict[str, Benchmark] = {
    "permuted-mnist": Benchmark("MNIST, pixels permuted anew in each later task", MNIST.load, PermutedPixels, tasks=20),
    "rotated-mnist": Benchmark("MNIST, rotated by 10 more degrees in every task", MNIST.load, RotatedPixels, tasks=20),
    "split-cifar100": Benchmark("CIFAR-100, 20 tasks of 5 classes each", CIFAR100.load, SplitClasses, tasks=20),
    "split-miniimagenet": Benchmark("miniImageNet, 20 tasks of 5 classes", MINIIMAGENET.load, SplitClasses, tasks=20),
    "split-folder": Benchmark("your images in --data-dir, a folder per class", _folder, SplitClasses, tasks=None),
    "permuted-digits": Benchmark("permuted-mnist on scikit-learn's 8×8 digits", DIGITS.load, PermutedPixels, tasks=20),
    "rotated-digits": Benchmark("rotated-mnist on scikit-learn's 8×8 digits", DIGITS.load, RotatedPixels, tasks=20),
    "split-digits": Benchmark("scikit-learn's 8×8 digits, 2 tasks of 5 classes", DIGITS.load, SplitClasses, tasks=2),
}


def find_dataset(name: str) -> DataSource:
    if name not in DATASETS:
        raise KclError(f"unknown dataset {name!r}; {nearest(name, list(DATASETS))}")
    return DATASETS[name]


def find_benchmark(name: str) -> Benchmark:
    if name not in BENCHMARKS:
        raise KclError(f"unknown benchmark {name!r}; {nearest(name, list(BENCHMARKS))}")
    return BENCHMARKS[name]
