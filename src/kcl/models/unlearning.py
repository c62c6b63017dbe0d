"""Forgetting from sums: what remains equals the sums of a model that never saw what was forgotten.

A task, or with `keep="class"` a class, has statistics of its own, which are left out. Samples are subtracted, and must
be handed in again. Features, and the scaling and kernel width measured on the first lesson, stay as they are.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection
from dataclasses import dataclass, replace

from torch import Tensor

from kcl.core.settings import nearest
from kcl.errors import KclError
from kcl.functional import primal, statistics
from kcl.models.inputs import Label
from kcl.models.lessons import LearnedTask, Tasks, places_among_all, samples_by_class
from kcl.models.streaming_ridge import WHOLE, StreamingRidge, Units, joined


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


def of_classes(
    ridge: StreamingRidge, tasks: Tasks, task: str, classes: Collection[Label] | None = None
) -> tuple[Units, Tasks]:
    """The statistics of a task, or of some of its classes, which must be kept apart; and the tasks without them."""
    known = tasks[task]
    for label in classes or ():
        if label not in known.labels:
            raise KclError(f"task {task!r} has no class {label!r}; {nearest(str(label), list(map(str, known.labels)))}")
    dropped = {known.labels.index(label) for label in (known.labels if classes is None else classes)}
    forgotten = {unit: part for unit, part in ridge.units.items() if unit.task == task}
    if len(dropped) < len(known.labels):
        if any(unit.label == WHOLE for unit in forgotten):
            raise KclError(
                "this model keeps one sum for all classes of a task: to forget a class, hand its samples in again, or "
                "start a model with keep='class'"
            )
        forgotten = {unit: part for unit, part in forgotten.items() if unit.label in dropped}
    return forgotten, _without(tasks, task, known, dropped)


def without_samples(ridge: StreamingRidge, tasks: Tasks, task: str, targets: Tensor) -> Tasks:
    """The tasks without samples that have these targets. A class that has no samples left is removed too."""
    known = tasks[task]
    counts = samples_by_class(targets, len(known.labels))
    seen = tuple(before - count for before, count in zip(known.seen, counts, strict=True))
    for label, count in zip(known.labels, seen, strict=True):
        if count < 0:
            of_class = "" if ridge.numbers else f" of class {label!r}"
            raise KclError(f"task {task!r} learned fewer samples{of_class} than are to be forgotten")
    emptied = {place for place, count in enumerate(seen) if count == 0 < counts[place]}
    return _without(tasks, task, replace(known, seen=seen), emptied)


def carry_out(ridge: StreamingRidge, tasks: Tasks, forgotten: Units, remaining: Tasks, what: str) -> Receipt:
    """Leave statistics out of the model's, and say how exactly. `remaining`: the tasks that stay."""
    before, gap, places = digest(ridge.units), 0.0, places_among_all(tasks)
    samples = sum(part.count for part in forgotten.values())
    whole = joined(ridge.units, places, ridge.moment)
    left = {unit: part for unit, part in ridge.without(forgotten).items() if unit.task in remaining}
    ridge.install(left)
    if left:
        anew = primal.decompose(joined(left, places, ridge.moment, whole.targets))
        rest = primal.decompose(statistics.subtract(whole, joined(forgotten, places, None, whole.targets)))
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


def _without(tasks: Tasks, task: str, known: LearnedTask, dropped: Collection[int]) -> Tasks:
    """The tasks when a task, now `known`, loses the classes at some places, and goes with the last one."""
    kept = [place for place in range(len(known.labels)) if place not in dropped]
    left = replace(known, labels=tuple(known.labels[k] for k in kept), seen=tuple(known.seen[k] for k in kept))
    return {name: left if name == task else other for name, other in tasks.items() if kept or name != task}
