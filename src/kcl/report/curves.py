"""The numbers behind the figures: accuracy over the course of a run, mean and spread over seeds."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from kcl.report.groups import Group


class Curve(NamedTuple):
    """Mean over seeds, and its band: one sample standard deviation to each side, zero for a single seed."""

    mean: npt.NDArray[np.float64]
    band: npt.NDArray[np.float64]


def average_accuracy_curve(group: Group) -> Curve:
    """Average accuracy over the tasks seen after task t, A_t (Eq. 12), for every t."""
    matrices = group.matrices()
    return _over_seeds(np.stack([matrices[:, t, : t + 1].mean(axis=1) for t in range(group.tasks)], axis=1))


def task_curve(group: Group, task: int) -> Curve:
    """Accuracy on one task after each task from itself on: column i of the matrix below the diagonal."""
    return _over_seeds(group.matrices()[:, task:, task])


def has_history(group: Group) -> bool:
    """Whether tasks were tested as they were learned, and not, as in multi-task training, once at the end."""
    return not np.isnan(group.matrices()[:, 0, 0]).any()


def _over_seeds(values: npt.NDArray[np.float64]) -> Curve:
    mean = values.mean(axis=0)
    return Curve(mean, values.std(axis=0, ddof=1) if len(values) > 1 else np.zeros_like(mean))
