"""What the streams of `own_data_streams.py` are made of: files and packages → rows → tasks."""

from __future__ import annotations

import csv
import json
import os
import tempfile
from collections.abc import Sequence
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

Rows = tuple[np.ndarray, np.ndarray]


TEST_SHARE = 0.3
ROWS_OF_A_MOVE = 600


class Task(NamedTuple):
    name: str
    train_x: np.ndarray
    train_y: np.ndarray
    test_x: np.ndarray
    test_y: np.ndarray


class Missing(Exception):
    """What a stream needs is not here."""


# From files to rows


def folder(name: str) -> Path:
    root = os.environ.get("KCL_DATA")
    if root is None or not (Path(root) / name).is_dir():
        raise Missing(f"needs {name} under KCL_DATA")
    return Path(root) / name


def from_river(data: Any, most: int | None = None) -> Rows:
    pairs = list(islice(data, most))
    labels = sorted({label for _, label in pairs})
    x = np.array([[float(value) for value in row.values()] for row, _ in pairs])
    return x, np.array([labels.index(label) for _, label in pairs])


@cache
def mnist() -> Rows:
    from kcl.data.mnist import MnistSource

    data = MnistSource().load(folder("MNIST").parent)
    return data.train_inputs[:20_000].numpy(), data.train_labels[:20_000].numpy()


@cache
def cifar100_classes() -> dict[str, np.ndarray]:
    """Training images by name of class."""
    from kcl.data.cifar100 import Cifar100Source

    data = Cifar100Source().load(folder("cifar-100-python").parent)
    labels = data.train_labels.numpy()
    return {
        name: data.train_inputs[np.flatnonzero(labels == number)].numpy()
        for number, name in enumerate(data.class_names)
    }


def png_folders(images: dict[str, np.ndarray]) -> Rows:
    """The images as a person has them: PNG files, one folder a class, read as `kcl update` reads them."""
    from PIL import Image

    from kcl.data.user_data import read

    with tempfile.TemporaryDirectory() as name:
        for kind, several in images.items():
            (Path(name) / kind).mkdir()
            for number, image in enumerate(several):
                Image.fromarray(image.transpose(1, 2, 0)).save(Path(name) / kind / f"{number:04}.png")
        samples = read(Path(name), labelled=True)
    kinds = sorted(images)
    return samples.inputs, np.array([kinds.index(label) for label in samples.labels])


@cache
def clinc150_texts() -> tuple[tuple[str, ...], tuple[str, ...]]:
    data = json.loads((folder("clinc150") / "data_full.json").read_text(encoding="utf-8"))
    texts, intents = zip(*data["train"], *data["test"], strict=True)
    return texts, intents


@cache
def banking77() -> tuple[tuple[str, ...], np.ndarray]:
    with (folder("banking77") / "train.csv").open(newline="", encoding="utf-8") as file:
        rows = [(row["text"], row["category"]) for row in csv.DictReader(file)]
    names = sorted({category for _, category in rows})
    return tuple(text for text, _ in rows), np.array([names.index(category) for _, category in rows])


@cache
def hashed(texts: tuple[str, ...]) -> np.ndarray:
    from sklearn.feature_extraction.text import HashingVectorizer

    return HashingVectorizer(n_features=512).transform(texts).toarray()


@cache
def embedded(texts: tuple[str, ...]) -> np.ndarray:
    import wordllama

    weights = Path(wordllama.__file__).parent
    return wordllama.WordLlama.load(cache_dir=weights, disable_download=True).embed(list(texts))


# From rows to tasks


def split(name: str, x: np.ndarray, y: np.ndarray, rng: np.random.Generator) -> Task:
    """A task with a share of its rows as test set, drawn per class, at least one row of each."""
    order = rng.permutation(len(y))
    test = np.concatenate(
        [(rows := order[y[order] == label])[: max(1, round(TEST_SHARE * len(rows)))] for label in np.unique(y)]
    )
    train = np.setdiff1d(order, test)
    train = rng.permutation(train)
    return Task(name, x[train], y[train], x[test], y[test])


def by_class(
    x: np.ndarray, y: np.ndarray, size: int, rng: np.random.Generator, train: int = 0, test: int = 0
) -> list[Task]:
    """Tasks of `size` classes each (or one more), in an order that is drawn. `train`, `test`: at most so many rows of a
    class.
    """
    tasks, labels = [], rng.permutation(np.unique(y))
    for number, chosen in enumerate(np.array_split(labels, len(labels) // size)):
        rows = np.flatnonzero(np.isin(y, chosen))
        task = split(f"part {number}", x[rows], y[rows], rng)
        tasks.append(thinned(task, train, test))
    return tasks


def thinned(task: Task, train: int, test: int) -> Task:
    """At most so many training and test rows of every class; zero: all."""
    kept = [
        _first_of_each(labels, most) if most else slice(None)
        for labels, most in ((task.train_y, train), (task.test_y, test))
    ]
    return Task(task.name, task.train_x[kept[0]], task.train_y[kept[0]], task.test_x[kept[1]], task.test_y[kept[1]])


def _first_of_each(labels: np.ndarray, most: int) -> np.ndarray:
    return np.sort(np.concatenate([np.flatnonzero(labels == label)[:most] for label in np.unique(labels)]))


def by_quantile(x: np.ndarray, y: np.ndarray, values: np.ndarray, parts: int, rng: np.random.Generator) -> list[Task]:
    """Tasks by rising `values`: the same classes, from another part of the space each time."""
    pieces = np.array_split(np.argsort(values, kind="stable"), parts)
    return [split(f"part {number}", x[rows], y[rows], rng) for number, rows in enumerate(pieces)]


def padded(x: np.ndarray, columns: int) -> np.ndarray:
    """Zeros for columns that this table does not have."""
    return np.pad(x, ((0, 0), (0, columns - x.shape[1])))


def tables(named: Sequence[tuple[str, Any]], rng: np.random.Generator) -> list[Task]:
    """One table after the other, in an order that is drawn: other columns, other classes."""
    columns = max(table.data.shape[1] for _, table in named)
    tasks, classes = [], 0
    for name, table in named:
        tasks.append(split(name, padded(table.data, columns), table.target + classes, rng))
        classes += table.target.max() + 1
    return [tasks[place] for place in rng.permutation(len(tasks))]


def permuted(x: np.ndarray, y: np.ndarray, rng: np.random.Generator) -> list[Task]:
    """Five tasks of other rows each, with their columns in another order."""
    tasks = []
    for k in range(5):
        rows, order = rng.permutation(len(y))[:ROWS_OF_A_MOVE], rng.permutation(x.shape[1])
        tasks.append(split(f"order {k}", x[rows][:, order], y[rows], rng))
    return tasks
