"""Split benchmarks: the classes of one dataset, divided among the tasks."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from kcl.benchmarks.task import Examples, Stream, Task, View
from kcl.benchmarks.ways import CLASS_ORDERS, DEFAULT_WAYS, Ways, check_ways, draw_ways, show_ways
from kcl.core.randomness import check_seed, numpy_generator
from kcl.core.shapes import Int
from kcl.data import image_folders
from kcl.data.cifar100 import CIFAR100
from kcl.data.dataset import Dataset
from kcl.data.miniimagenet import MINIIMAGENET
from kcl.data.source import DataSource
from kcl.errors import KclError


class SplitClasses(Stream):
    """A stream over one dataset in which every task has its own classes.

    Parameters
    ----------
    dataset : Dataset
        Training and test images with labels.
    tasks : int, optional
        How many; by default what the classes allow.
    seed : int
        Fixes everything that is drawn.
    train_per_task : int, optional
        So many training samples, drawn evenly over a task's classes; by default all.
    ways : int, (low, high) or (low, high, n)
        Classes per task. A pair draws it for every task, uniformly from low to high or to the number left, until fewer
        than low classes are left; those belong to no task. A triple divides all classes among n tasks.
    class_order : "fixed" or "shuffled"
        The dataset's own order of classes, or one drawn from the seed.
    """

    def __init__(
        self,
        dataset: Dataset,
        tasks: int | None = None,
        seed: int = 0,
        train_per_task: int | None = None,
        ways: Ways = DEFAULT_WAYS,
        class_order: str = "fixed",
    ) -> None:
        check_seed(seed)
        if class_order not in CLASS_ORDERS:
            raise KclError(f"class_order must be one of {', '.join(CLASS_ORDERS)}, not {class_order!r}")
        count = len(dataset.class_names)
        self.dataset, self.seed, self.train_per_task, self.class_order = dataset, seed, train_per_task, class_order
        self.ways = check_ways(ways, count, dataset.name)
        self.input_shape = tuple(dataset.train_inputs.shape[1:])
        self.class_labels = tuple(range(count))
        self.task_ways = self._task_ways(count, tasks)
        self.task_count = len(self.task_ways)
        shuffled = numpy_generator(seed, "class order").permutation(count)
        order = shuffled if class_order == "shuffled" else np.arange(count)
        self._classes = np.split(order, np.cumsum(self.task_ways))[:-1]  # of every task; the last are left out
        self._train_rows = _rows_by_class(dataset.train_labels, count)
        self._test_rows = _rows_by_class(dataset.test_labels, count)
        least, most = max(self.task_ways), max(sum(len(self._train_rows[k]) for k in task) for task in self._classes)
        if train_per_task is not None and not least <= train_per_task <= most:
            raise KclError(
                f"train_per_task must lie in {least} … {most} for {dataset.name}, from one sample per class to all of "
                f"a task, not {train_per_task}"
            )

    def task(self, index: int) -> Task:
        classes = self._classes[index]
        train = [self._train_rows[number] for number in classes]
        if self.train_per_task is not None:
            random = numpy_generator(self.seed, "train rows", index)
            shares = _even_shares([len(rows) for rows in train], self.train_per_task)
            train = [random.choice(rows, share, replace=False) for rows, share in zip(train, shares, strict=True)]
        return Task(
            index=index,
            train=_examples(self.dataset.train_inputs, train),
            test=_examples(self.dataset.test_inputs, [self._test_rows[number] for number in classes]),
            classes=tuple(classes.tolist()),
            view=View(mean=self.dataset.mean, std=self.dataset.std),
        )

    def _task_ways(self, count: int, tasks: int | None) -> tuple[int, ...]:
        if tasks is not None and tasks < 1:
            raise KclError(f"tasks must be at least 1, not {tasks}")
        if isinstance(self.ways, int):
            if tasks is None and count % self.ways:
                raise KclError(
                    f"the {count} classes of {self.dataset.name} do not make whole tasks of {self.ways} ways: choose "
                    f"other ways, or {count // self.ways} tasks to leave the last {count % self.ways} classes out"
                )
            drawn = [self.ways] * (count // self.ways)
        else:
            drawn = draw_ways(self.ways, count, numpy_generator(self.seed, "ways"))
        if tasks is not None and tasks > len(drawn):
            seed = "" if isinstance(self.ways, int) else f" with seed {self.seed}"
            possible = f"{len(drawn)} tasks of {show_ways(self.ways)} ways{seed}"
            raise KclError(
                f"the {count} classes of {self.dataset.name} make {possible}, not {tasks}: use fewer tasks or ways"
            )
        return tuple(drawn[:tasks])


def _rows_by_class(labels: Int[Tensor, " n"], count: int) -> list[np.ndarray]:
    """The rows of every class, in stored order."""
    values = labels.numpy()
    return np.split(np.argsort(values, kind="stable"), np.cumsum(np.bincount(values, minlength=count))[:-1])


def _even_shares(sizes: list[int], total: int) -> list[int]:
    """Samples per class, equal except where a class has too few."""
    shares, left = [0] * len(sizes), total
    for position, place in enumerate(sorted(range(len(sizes)), key=lambda place: (sizes[place], -place))):
        shares[place] = min(sizes[place], left // (len(sizes) - position))
        left -= shares[place]
    return shares


def _examples(inputs: Tensor, rows: list[np.ndarray]) -> Examples:
    labels = np.repeat(np.arange(len(rows)), [len(class_rows) for class_rows in rows])
    return Examples(inputs, torch.from_numpy(np.concatenate(rows)), torch.from_numpy(labels))


class _SplitSource(SplitClasses):
    source: DataSource

    def __init__(
        self,
        tasks: int | None = None,
        ways: Ways = DEFAULT_WAYS,
        seed: int = 0,
        train_per_task: int | None = None,
        class_order: str = "fixed",
        data_dir: Path | str | None = None,
    ) -> None:
        super().__init__(self.source.load(data_dir), tasks, seed, train_per_task, ways, class_order)


class SplitCIFAR100(_SplitSource):
    """Split CIFAR-100: 20 tasks of 5 classes, 500 training and 100 test images of each, (3, 32, 32).

    `data_dir` is the folder of the data; by default `KCL_DATA` or the cache. Other parameters are those of
    `SplitClasses`.
    """

    recipe, source = "split-cifar100", CIFAR100


class SplitMiniImageNet(_SplitSource):
    """Split miniImageNet: 20 tasks of 5 classes, 500 training and 100 test images of each, (3, 84, 84).

    Parameters are those of `SplitCIFAR100`.
    """

    recipe, source = "split-miniimagenet", MINIIMAGENET


class SplitFolder(SplitClasses):
    """Your own images, one folder per class: `PATH/CLASS/…`, or `PATH/train/CLASS/…` with `PATH/test/CLASS/…`.

    Parameters
    ----------
    path : str or Path
        The folder. Without `train` and `test` in it the last sixth of every class is the test set.
    image_size : int
        Images are cut to a centred square and resized to this side, in pixels.
    tasks, ways, seed, train_per_task, class_order
        As for `SplitClasses`.
    """

    recipe = "split-folder"

    def __init__(
        self,
        path: Path | str,
        tasks: int | None = None,
        ways: Ways = DEFAULT_WAYS,
        seed: int = 0,
        train_per_task: int | None = None,
        class_order: str = "fixed",
        image_size: int = image_folders.DEFAULT_SIDE,
    ) -> None:
        super().__init__(image_folders.load(Path(path), image_size), tasks, seed, train_per_task, ways, class_order)
