"""The coreset C_t: a few training samples of each class, drawn uniformly and removed from the training data."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from kcl.errors import KclError

LARGEST, MOST_CLASSES = 10_000, 1_000
"""Samples and classes of a coreset: with m and c of them every step takes m²c products."""


class Split(NamedTuple):
    """Positions in a task's training samples: the coreset, and the rest to train on."""

    coreset: np.ndarray
    rest: np.ndarray


def check_size(samples: int, classes: int) -> None:
    """Raise if a task has too many classes or its coreset too many samples to be solved in every step."""
    if classes > MOST_CLASSES:
        raise KclError(
            f"a task of {classes} classes; with a coreset the limit is {MOST_CLASSES} per task: divide the classes "
            "among several tasks, or use a streaming head (head='streaming')"
        )
    if samples > LARGEST:
        raise KclError(
            f"a coreset of {samples} samples has a kernel matrix of {samples**2:,} entries; the limit is {LARGEST} "
            "samples per task: choose a smaller coreset_size_per_class"
        )


def check_coreset(labels: np.ndarray, size_per_class: int) -> None:
    """Raise if the coreset would leave nothing to train on, or if it would be too large."""
    counts = _counted(labels)[1]
    size = int(np.minimum(counts, size_per_class).sum())
    check_size(size, len(counts))
    if size == len(labels):
        raise KclError(
            f"a coreset with {size_per_class} samples per class takes all {len(labels)} training samples of the task "
            "and leaves none to train on; choose a smaller coreset_size_per_class or more training samples"
        )


def split_coreset(labels: np.ndarray, size_per_class: int, rng: np.random.Generator) -> Split:
    """Draw `size_per_class` samples of every class without replacement, or all of a class that has fewer."""
    check_coreset(labels, size_per_class)
    chosen = [rng.permutation(np.flatnonzero(labels == value))[:size_per_class] for value in _counted(labels)[0]]
    rest = np.ones(len(labels), dtype=bool)
    rest[np.concatenate(chosen)] = False
    return Split(np.concatenate(chosen), np.flatnonzero(rest))


def _counted(labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The labels in ascending order and the number of samples of each; faster than `np.unique`, which sorts."""
    lowest = labels.min()
    counts = np.bincount(labels - lowest)
    present = np.flatnonzero(counts)
    return lowest + present, counts[present]
