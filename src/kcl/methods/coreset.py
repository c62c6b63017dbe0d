"""The coreset C_t: a few training samples of each class, drawn uniformly, taken out of the training data."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from kcl.errors import KclError


class Split(NamedTuple):
    """Positions within a task's training samples: the coreset, and what remains to train on."""

    coreset: np.ndarray
    rest: np.ndarray


def split_coreset(labels: np.ndarray, size_per_class: int, rng: np.random.Generator) -> Split:
    """Draw `size_per_class` samples of every class without replacement; a class with fewer gives what it has."""
    chosen = [rng.permutation(np.flatnonzero(labels == value))[:size_per_class] for value in np.unique(labels)]
    coreset = np.concatenate(chosen)
    rest = np.setdiff1d(np.arange(len(labels)), coreset, assume_unique=True)
    if len(rest) == 0:
        raise KclError(
            f"a coreset of {size_per_class} samples per class takes all {len(labels)} training samples of the task "
            "and leaves none to train on; choose a smaller coreset_size_per_class or more training samples"
        )
    return Split(coreset, rest)
