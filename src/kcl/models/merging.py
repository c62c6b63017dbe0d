"""Adding up models of the same features: the sum equals one model that learned everything."""

from __future__ import annotations

import copy
from typing import Any, TypeVar

import numpy as np

from kcl.errors import KclError
from kcl.models.lessons import LearnedTask
from kcl.models.streaming_heads import StreamingHeads
from kcl.models.streaming_ridge import WHOLE, Units, add_units

Mergeable = TypeVar("Mergeable", bound=Any)


def merge(*models: Mergeable) -> Mergeable:
    """One model that knows what all of them know. Tasks of the same name are one task, equal labels of it one class.

    Parameters
    ----------
    *models : ContinualModel, or fitted estimators of one kind
        With streaming heads of the same features, scaling and settings: begin them all as `blank_copy()` of one model,
        or give `width` and switch `standardise` off.
    """
    if not models:
        raise KclError("give at least one model to merge")
    if hasattr(models[0], "model_"):
        return _merged_estimators(*models)
    for model in models:
        if not hasattr(model, "heads"):
            raise KclError(f"{model!r} cannot be merged: give models, or fitted estimators of one kind")
    first = models[0]
    for number, model in enumerate(models, start=1):
        if not all(isinstance(each.heads, StreamingHeads) for each in (first, model)):
            raise KclError("only models with streaming heads can be merged: networks trained apart do not add up")
        heads, of_first = model.heads, first.heads
        if heads.ridge.features.identity() != of_first.ridge.features.identity() or model.view != first.view:
            raise KclError(f"model {number} has other features or another scaling than model 1, so they do not add up")
        if heads.settings != of_first.settings or model.columns != first.columns or model.dtype != first.dtype:
            raise KclError(f"model {number} has other settings, columns or inputs than model 1")
        if model.numbers and len({task.labels for each in models[:number] for task in each.tasks.values()}) > 1:
            raise KclError(f"model {number} has another number of targets than the models before it")
        if model.numbers != first.numbers:
            raise KclError("models of classes and models of numbers do not add up")
    merged = first.blank_copy()
    several: list[Units] = []
    for model in models:
        for name, task in model.tasks.items():
            known = merged.tasks.get(name, LearnedTask(len(merged.tasks), (), ()))
            merged.tasks[name] = _joined(known, task)
        several.append({})
        for unit, part in model.heads.ridge.units.items():
            labels = merged.tasks[unit.task].labels
            places = [labels.index(label) for label in model.tasks[unit.task].labels]
            if unit.label == WHOLE:
                several[-1][unit] = part.placed(places[: part.targets], len(labels))
            else:
                several[-1][unit._replace(label=places[unit.label])] = part
    merged.heads.ridge.install(add_units(several))
    merged.history = [lesson for model in models for lesson in model.history]
    return merged


def _merged_estimators(*estimators: Any) -> Any:
    """A copy of the first that knows what all of them know."""
    first = copy.copy(estimators[0])
    for number, other in enumerate(estimators[1:], start=2):
        if type(other) is not type(first) or not hasattr(other, "model_"):
            raise KclError(f"model {number} is not a fitted {type(first).__name__} as model 1 is")
    first.model_ = merge(*(each.model_ for each in estimators))
    if hasattr(first, "classes_"):
        first.classes_ = np.unique(np.concatenate([each.classes_ for each in estimators]))
    return first


def _joined(known: LearnedTask, task: LearnedTask) -> LearnedTask:
    """A task with the classes and samples of both."""
    counts = dict(zip(known.labels, known.seen, strict=True))
    for label, count in zip(task.labels, task.seen, strict=True):
        counts[label] = counts.get(label, 0) + count
    return LearnedTask(known.lesson, tuple(counts), tuple(counts.values()))
