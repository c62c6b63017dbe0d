"""Variants: runs that share a training and differ only in how they are tested."""

from __future__ import annotations

import itertools
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


def variants_of(methods: Sequence[Sequence[Method]]) -> list[Variant]:
    """Every run, training by training. `methods`: the methods that each training is tested with."""
    variants = []
    for training, tested_by in enumerate(methods):
        places = {each: place for place, each in enumerate(horizons(tested_by))}
        variants += [Variant(training, places.get(horizon(method.settings))) for method in tested_by]
    return variants


def test_groups(methods: Sequence[Sequence[Method]]) -> list[TestGroup]:
    """All runs, grouped by how they are tested."""
    groups: dict[Any, TestGroup] = {}
    runs = zip(itertools.chain(*methods), variants_of(methods), strict=True)
    for run, (method, (training, average)) in enumerate(runs):
        group = groups.setdefault((method.settings.testing_key(), average), TestGroup(method, [], [], average))
        group.runs.append(run)
        group.trainings.append(training)
    return list(groups.values())
