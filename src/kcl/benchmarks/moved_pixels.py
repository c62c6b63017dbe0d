"""Permuted and Rotated MNIST: the same images in every task, with the pixels moved differently in each."""

from __future__ import annotations

import math
from abc import abstractmethod
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from kcl.benchmarks.task import Examples, Stream, Task, View
from kcl.core.randomness import check_seed, numpy_generator
from kcl.core.shapes import Int
from kcl.data.dataset import Dataset
from kcl.data.digits import DIGITS
from kcl.data.mnist import MNIST
from kcl.data.source import DataSource
from kcl.errors import KclError


class MovedPixels(Stream):
    """A stream over one dataset of square images; task t shows every image through its own pixel map."""

    def __init__(self, dataset: Dataset, tasks: int = 20, seed: int = 0, train_per_task: int | None = None) -> None:
        if tasks < 1:
            raise KclError(f"tasks must be at least 1, not {tasks}")
        check_seed(seed)
        available = len(dataset.train_labels)
        if train_per_task is not None and not 1 <= train_per_task <= available:
            raise KclError(f"train_per_task must lie in 1 … {available} for {dataset.name}, not {train_per_task}")
        self.dataset = dataset
        self.task_count = tasks
        self.seed = seed
        self.train_per_task = train_per_task
        self.input_shape = tuple(dataset.train_inputs.shape[1:])
        self.class_labels = tuple(range(len(dataset.class_names)))

    @abstractmethod
    def pixel_map(self, index: int) -> Int[Tensor, " p"] | None:
        """The stored pixel that task `index` shows at each position; None for unchanged images."""

    def task(self, index: int) -> Task:
        data = self.dataset
        rows = np.arange(len(data.train_labels))
        if self.train_per_task is not None:
            rows = numpy_generator(self.seed, "train rows", index).choice(rows, self.train_per_task, replace=False)
        train_rows = torch.from_numpy(rows)
        test_rows = torch.arange(len(data.test_labels))
        return Task(
            index=index,
            train=Examples(data.train_inputs, train_rows, data.train_labels[train_rows]),
            test=Examples(data.test_inputs, test_rows, data.test_labels),
            classes=self.class_labels,
            view=View(self.pixel_map(index)),
        )


class PermutedPixels(MovedPixels):
    """Task 0 shows unchanged images; every later task permutes the pixels differently."""

    def pixel_map(self, index: int) -> Int[Tensor, " p"] | None:
        if index == 0:
            return None
        pixels = int(np.prod(self.input_shape))
        return torch.from_numpy(numpy_generator(self.seed, "permutation", index).permutation(pixels))


class RotatedPixels(MovedPixels):
    """Task t rotates every image counter-clockwise by 10t − U(0, 10) degrees, nearest neighbour, black outside."""

    step_degrees = 10.0

    def angle(self, index: int) -> float:
        return self.step_degrees * (index - numpy_generator(self.seed, "angle", index).random())

    def pixel_map(self, index: int) -> Int[Tensor, " p"]:
        return rotation_map(self.input_shape[-1], self.angle(index))


def rotation_map(side: int, degrees: float) -> Int[Tensor, " p"]:
    """The pixel map of a counter-clockwise rotation about the centre of a side × side image, nearest neighbour.

    Computed in 16.16 fixed point like Pillow's `Image.rotate`, so that every pixel equals Pillow's; `grid_sample`
    differs in a few pixels at about one angle in fifteen.
    """
    radians = -math.radians(degrees % 360.0)
    cosine, sine, centre = round(math.cos(radians), 15), round(math.sin(radians), 15), side / 2.0
    x_start = _fixed(centre - cosine * centre - sine * centre + 0.5 * (cosine + sine))
    y_start = _fixed(centre + sine * centre - cosine * centre + 0.5 * (cosine - sine))
    row, column = torch.meshgrid(torch.arange(side), torch.arange(side), indexing="ij")
    x = (x_start + _fixed(cosine) * column + _fixed(sine) * row) >> 16
    y = (y_start + _fixed(-sine) * column + _fixed(cosine) * row) >> 16
    inside = (x >= 0) & (x < side) & (y >= 0) & (y < side)
    return torch.where(inside, y * side + x, -1).flatten()


def _fixed(value: float) -> int:
    return math.floor(value * 65536.0 + 0.5)


class _MovedSource(MovedPixels):
    source: DataSource

    def __init__(
        self, tasks: int = 20, seed: int = 0, train_per_task: int | None = None, data_dir: Path | str | None = None
    ) -> None:
        super().__init__(self.source.load(data_dir), tasks, seed, train_per_task)


class PermutedMNIST(_MovedSource, PermutedPixels):
    """Permuted MNIST: 20 tasks of 60,000 training and 10,000 test images, (1, 28, 28), ten digits each.

    Parameters
    ----------
    tasks : int
        How many.
    seed : int
        Fixes permutations or angles, and which training samples are drawn.
    train_per_task : int, optional
        Training samples per task; by default all.
    data_dir : str or Path, optional
        The folder of the data; by default `KCL_DATA` or the cache.
    """

    recipe, source = "permuted-mnist", MNIST


class RotatedMNIST(_MovedSource, RotatedPixels):
    """Rotated MNIST: 20 tasks, each about 10 degrees further than the one before."""

    recipe, source = "rotated-mnist", MNIST


class PermutedDigits(_MovedSource, PermutedPixels):
    """Permuted MNIST's miniature on scikit-learn's bundled 8×8 digits."""

    recipe, source = "permuted-digits", DIGITS


class RotatedDigits(_MovedSource, RotatedPixels):
    """Rotated MNIST's miniature on scikit-learn's bundled 8×8 digits."""

    recipe, source = "rotated-digits", DIGITS
