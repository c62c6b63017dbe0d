"""Variants: runs that share a training and differ only in how they are tested."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from kcl.methods.method import Method
from kcl.training.weight_average import horizon, horizons


class Variant(NamedTuple):
    """One run: its training, and the weight average it is tested with (None: the last weights)."""

    training: int
    average: int | None


class TestGroup(NamedTuple):
    """Runs of different trainings that are tested in the same way, and therefore together."""

    method: Method
    runs: list[int]
    trainings: list[int]
    average: int | None


def grouped(methods: Sequence[Sequence[Method]]) -> tuple[list[Variant], list[TestGroup]]:
    """Every run, training by training, and all runs grouped by how they are tested. `methods`: the methods that each
    training is tested with.
    """
    runs: list[Variant] = []
    groups: dict[Any, TestGroup] = {}
    for training, tested_by in enumerate(methods):
        averages = horizons(tested_by)
        for method in tested_by:
            averaged = horizon(method.settings)
            average = averages.index(averaged) if averaged in averages else None
            group = groups.setdefault((method.settings.testing_key(), average), TestGroup(method, [], [], average))
            group.runs.append(len(runs))
            group.trainings.append(training)
            runs.append(Variant(training, average))
    return runs, list(groups.values())
