"""Forgetting from sums: what remains equals the sums of a model that never saw what was forgotten.

A task, or with `keep="class"` a class, has statistics of its own, which are left out. Samples are subtracted, and must
be handed in again. Features, and the scaling and kernel width measured on the first lesson, stay as they are.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch

from kcl.core.settings import nearest
from kcl.core.shapes import Bool, Float
from kcl.errors import KclError
from kcl.functional import primal, statistics
from kcl.models.inputs import Label
from kcl.models.lessons import LearnedTask, places_among_all
from kcl.models.streaming_ridge import WHOLE, StreamingRidge, Units, joined

Tasks = dict[str, LearnedTask]


@dataclass(frozen=True)
class Receipt:
    """What was forgotten, and how exactly."""

    forgotten: str
    samples: int
    digest_before: str
    """SHA-256 of the statistics before."""
    digest_after: str
    gap: float
    """The largest difference between the weights over all classes from two ways of forgetting: the remaining statistics
    summed anew, which is what the model keeps, and the old sums minus the forgotten statistics.
    """


class Removal(NamedTuple):
    """Statistics that go and those that stay, with classes at their old places, and the tasks that stay."""

    forgotten: Units
    left: Units
    tasks: Tasks


def of_task(ridge: StreamingRidge, tasks: Tasks, task: str) -> Removal:
    """Remove a whole task."""
    forgotten = {unit: part for unit, part in ridge.units.items() if unit.task == task}
    left = {unit: part for unit, part in ridge.units.items() if unit.task != task}
    return Removal(forgotten, left, {name: known for name, known in tasks.items() if name != task})


def of_classes(ridge: StreamingRidge, tasks: Tasks, task: str, classes: Collection[Label]) -> Removal:
    """Remove classes of a task, whose statistics must be kept apart."""
    known = tasks[task]
    for label in classes:
        if label not in known.labels:
            raise KclError(f"task {task!r} has no class {label!r}; {nearest(str(label), list(map(str, known.labels)))}")
    dropped = {known.labels.index(label) for label in classes}
    if len(dropped) == len(known.labels):
        return of_task(ridge, tasks, task)
    if any(unit.task == task and unit.label == WHOLE for unit in ridge.units):
        raise KclError(
            "this model keeps one sum for all classes of a task: to forget a class, hand its samples in again, or "
            "start a model with keep='class'"
        )
    forgotten = {unit: part for unit, part in ridge.units.items() if unit.task == task and unit.label in dropped}
    left = {unit: part for unit, part in ridge.units.items() if unit not in forgotten}
    return Removal(forgotten, left, tasks | {task: _without(known, dropped)})


def of_samples(
    ridge: StreamingRidge,
    tasks: Tasks,
    task: str,
    features: Float[torch.Tensor, "n D"],
    labels: Sequence[Label],
    weights: Float[torch.Tensor, " n"] | None = None,
    held_out: Bool[torch.Tensor, " n"] | None = None,
) -> Removal:
    """Remove samples, given by their features. A class that has no samples left is removed too."""
    known = tasks[task]
    if unknown := [label for label in labels if label not in known.labels]:
        raise KclError(f"task {task!r} never learned class {unknown[0]!r}, so none of its samples can be forgotten")
    places = torch.tensor([known.labels.index(label) for label in labels])
    counts = torch.bincount(places, minlength=len(known.labels)).tolist()
    seen = tuple(before - count for before, count in zip(known.seen, counts, strict=True))
    for label, count in zip(known.labels, seen, strict=True):
        if count < 0:
            raise KclError(f"task {task!r} learned fewer samples of class {label!r} than are to be forgotten")
    forgotten = ridge.parts(task, features, places.to(features.device), len(known.labels), weights, held_out)
    left = ridge.without(forgotten)
    emptied = {place for place, count in enumerate(seen) if count == 0 < counts[place]}
    if len(emptied) == len(seen):
        return Removal(forgotten, left, {name: other for name, other in tasks.items() if name != task})
    return Removal(forgotten, left, tasks | {task: _without(replace(known, seen=seen), emptied)})


def of_numbers(
    ridge: StreamingRidge,
    tasks: Tasks,
    task: str,
    features: Float[torch.Tensor, "n D"],
    targets: Float[torch.Tensor, "n c"],
    weights: Float[torch.Tensor, " n"] | None = None,
    held_out: Bool[torch.Tensor, " n"] | None = None,
) -> Removal:
    """Remove samples whose targets are numbers."""
    known = tasks[task]
    count = known.seen[0] - len(features)
    if count < 0:
        raise KclError(f"task {task!r} learned {known.seen[0]} samples, fewer than are to be forgotten")
    forgotten = ridge.parts(task, features, targets, len(known.labels), weights, held_out)
    left = ridge.without(forgotten)
    others = {name: other for name, other in tasks.items() if name != task}
    kept = tasks | {task: replace(known, seen=(count,) * len(known.seen))}
    return Removal(forgotten, left, kept if count else others)


def carry_out(ridge: StreamingRidge, tasks: Tasks, removal: Removal, what: str) -> Receipt:
    """Leave the removed statistics out of the model's, and say how exactly."""
    forgotten, left, remaining = removal
    before, gap, places = digest(ridge.units), 0.0, places_among_all(tasks)
    samples = sum(part.count for part in forgotten.values())
    whole = joined(ridge.units, places, ridge.moment)
    left = {unit: part for unit, part in left.items() if unit.task in remaining}
    ridge.install(left)
    if left:
        anew = primal.spectrum(joined(left, places, ridge.moment, whole.targets))
        rest = primal.spectrum(statistics.subtract(whole, joined(forgotten, places, None, whole.targets)))
        strength = ridge.best_strength(anew, left, places)
        gap = float((primal.weights(anew, strength) - primal.weights(rest, strength)).abs().max())
    units = {}
    for unit, part in left.items():
        kept = [tasks[unit.task].labels.index(label) for label in remaining[unit.task].labels]
        if unit.label == WHOLE:
            units[unit] = part.columns([column for column in kept if column < part.targets])
        else:
            units[unit._replace(label=kept.index(unit.label))] = part
    ridge.install(units, ridge.moment)
    return Receipt(what, round(samples), before, digest(units), gap)


def digest(units: Units) -> str:
    """SHA-256 of statistics."""
    content = hashlib.sha256()
    for unit, part in sorted(units.items()):
        content.update(f"{unit.task}\0{unit.label}\0{unit.held_out:d}\0{part.count!r}\0".encode())
        for tensor in (part.moment.tensor, part.cross, part.sums, part.squares):
            content.update(tensor.cpu().contiguous().numpy().tobytes())
    return content.hexdigest()


def _without(task: LearnedTask, places: Collection[int]) -> LearnedTask:
    kept = [place for place in range(len(task.labels)) if place not in places]
    return replace(task, labels=tuple(task.labels[k] for k in kept), seen=tuple(task.seen[k] for k in kept))
