"""Runs that share a training and differ only in how they are tested."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any, NamedTuple, TypeVar

from kcl.methods.method import Method
from kcl.training.weight_average import horizon, horizons

PerRun = TypeVar("PerRun")


class Variant(NamedTuple):
    """One run: the training it shares, and the average of the weights it answers with; None: the last weights."""

    training: int
    average: int | None


class TestGroup(NamedTuple):
    """Runs of different trainings that are tested in the same way, and so together."""

    method: Method
    runs: list[int]
    trainings: list[int]
    average: int | None


def variants_of(methods: Sequence[Sequence[Method]]) -> list[Variant]:
    """Every run, training by training. `methods`: of each training, the methods it is tested by."""
    variants = []
    for training, tested_by in enumerate(methods):
        places = {each: place for place, each in enumerate(horizons(tested_by))}
        variants += [Variant(training, places.get(horizon(method.settings))) for method in tested_by]
    return variants


def test_groups(methods: Sequence[Sequence[Method]]) -> list[TestGroup]:
    """All runs, those that are tested in the same way together."""
    groups: dict[Any, TestGroup] = {}
    runs = zip(itertools.chain(*methods), variants_of(methods), strict=True)
    for run, (method, (training, average)) in enumerate(runs):
        group = groups.setdefault((method.settings.testing_key(), average), TestGroup(method, [], [], average))
        group.runs.append(run)
        group.trainings.append(training)
    return list(groups.values())


def once_per_training(values: Sequence[PerRun], counts: Sequence[int]) -> list[PerRun]:
    """What is given for every run, once for every training. `counts`: how many runs share each training."""
    firsts = [0, *itertools.accumulate(counts)]
    if len(values) != firsts.pop():
        raise ValueError(f"{len(values)} values for {sum(counts)} runs")
    return [values[first] for first in firsts]
