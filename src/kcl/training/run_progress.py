"""How each of the runs trained together stands: what displays and loggers are told after every task."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

from kcl.core.metrics import AccuracyMatrix


class Standing(NamedTuple):
    """How one run did after a task: percent on the tasks so far, and what follows from that; empty if it diverged."""

    seed: int
    accuracies: list[float | None]
    average_accuracy: float | None
    forgetting: float | None


def standings_after(
    learned: int | None, seeds: Sequence[int], matrices: Sequence[AccuracyMatrix], alive: Collection[int] = ()
) -> tuple[Standing, ...]:
    """Every run after task number `learned`; before the first (None) there is nothing but the seeds."""
    return tuple(
        Standing(seed, [], None, None)
        if learned is None or run not in alive
        else Standing(
            seed,
            matrix.to_lists()[learned][: learned + 1],
            matrix.average_accuracy_after(learned),
            matrix.forgetting_after(learned),
        )
        for run, (seed, matrix) in enumerate(zip(seeds, matrices, strict=True))
    )
