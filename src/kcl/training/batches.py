"""The batches of a task: their sizes, and the order in which a run visits its samples."""

from __future__ import annotations

import numpy as np
from torch import nn

from kcl.core.randomness import numpy_generator
from kcl.errors import KclError


class CannotStack(Exception):
    """These runs cannot be trained together; they can be trained one after another."""


def batch_sizes(model: nn.Module, length: int, batch: int) -> list[int]:
    """The batch sizes of an epoch; the last may be smaller. BatchNorm has no statistics for a single sample, so with it
    a last batch of one joins the batch before.
    """
    sizes = [batch] * (length // batch) + [length % batch] * (length % batch > 0)
    if sizes[-1] == 1 and getattr(model.get_submodule("backbone"), "mixes_samples", False):
        if len(sizes) == 1 or batch == 1:
            raise KclError("a backbone with BatchNorm needs training batches of at least two samples")
        sizes[-2:] = [sizes[-2] + 1]
    return sizes


def batch_order(seed: int, task_index: int, epoch: int, positions: np.ndarray) -> np.ndarray:
    """The training positions in the order in which a run visits them in an epoch."""
    return numpy_generator(seed, "batch order", task_index, epoch).permutation(positions)
