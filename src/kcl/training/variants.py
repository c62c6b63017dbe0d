"""Runs that share a training, stacked: which variants of the trainings are tested together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from kcl.methods.method import Method
from kcl.training.single_run import reaches
from kcl.training.weight_average import reach


class Member(NamedTuple):
    """A run among all: which training it shares, and by which of its averages it answers; None: by its weights."""

    training: int
    average: int | None


class Alike(NamedTuple):
    """Runs of different trainings that are tested in the same way, and so together."""

    method: Method
    runs: list[int]
    trainings: list[int]
    average: int | None


def members(variants: Sequence[Sequence[Method]]) -> list[Member]:
    """Every run, training by training. `variants`: of each training, the methods it is tested by."""
    found = []
    for training, own in enumerate(variants):
        places = {far: place for place, far in enumerate(reaches(own))}
        found += [Member(training, places.get(reach(method.settings))) for method in own]
    return found


def alike(variants: Sequence[Sequence[Method]]) -> list[Alike]:
    """All runs, those together that are tested in the same way."""
    methods = [method for own in variants for method in own]
    found: dict[Any, Alike] = {}
    for run, (method, (training, average)) in enumerate(zip(methods, members(variants), strict=True)):
        own = found.setdefault((method.settings.testing_key(), average), Alike(method, [], [], average))
        own.runs.append(run)
        own.trainings.append(training)
    return list(found.values())
