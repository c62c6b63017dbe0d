"""What a model chooses by itself where nothing is set, and what it says when a lesson did not go well."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from kcl.core.shapes import Shaped
from kcl.errors import KclWarning
from kcl.methods.kcl_settings import KclSettings
from kcl.methods.recipes import BENCHMARK_RECIPES
from kcl.models.lessons import LearnedTask

HEADS = {
    "auto": "where no setting and no backbone is given, streaming for rows of numbers and small images; else coreset",
    "coreset": "a network that learns, with a stored coreset and a classifier for every task",
    "streaming": "frozen features, exact classifiers from sums, no stored samples",
}
LARGEST_SMALL_IMAGE = 48
MOST_VALUES = 4096
"""Images of more values than this get a network by default; to smaller ones the kernel is applied directly, which was
better on the two streams of images among those that defaults were chosen on (docs/own-data.md).
"""
TABLE_SETTINGS: dict[str, Any] = {
    "backbone": "identity", "width": 128, "layers": 1, "bases": 512, "epochs": 3, "lr_decay": 0.95, "dropout": 0.0
}  # fmt: skip
"""Settings of a coreset for rows of numbers. Our own choice: nothing is published."""
NO_BETTER_THAN_CHANCE = 1.2
"""A task whose held-out accuracy is below this many times that of guessing is pointed out."""
SHOWN = 8


def streams(shape: Sequence[int], rows: bool) -> bool:
    """Whether samples of a shape get a streaming head if nothing is said."""
    return rows or math.prod(shape) <= MOST_VALUES


def coreset_settings(shape: Sequence[int], rows: bool, given: Mapping[str, Any]) -> KclSettings:
    """Settings for a coreset of samples of a shape: those published for images of that kind, our own for `rows`, and in
    place of either those that are `given`.
    """
    if rows:
        # Scaled columns need no normalisation of their own; what a network makes of them does.
        network = given.get("backbone", "identity") != "identity"
        chosen: Mapping[str, Any] = TABLE_SETTINGS | {"feature_norm": "l2" if network else "none"}
    else:
        colour = len(shape) == 3 and shape[0] == 3
        small = max(shape) <= LARGEST_SMALL_IMAGE
        benchmark = ("split-cifar100" if small else "split-miniimagenet") if colour else "permuted-mnist"
        chosen = BENCHMARK_RECIPES[benchmark]
    return KclSettings().replace(**{**chosen, **given})


def warn_of_scaling(x: Shaped[Tensor, "n d"]) -> None:
    """Say that the first samples have no spread to measure."""
    if bool((x == x[0]).all()):
        _warn(
            "all samples of the first lesson are the same, so that there is no spread to scale by, now or later: "
            "begin with some more"
        )


def warn(name: str, notes: dict[str, Any], task: LearnedTask, coreset: bool, samples: int) -> None:
    """Say what did not go well in a lesson of so many samples. With sums in place of a coreset, samples may come one by
    one.
    """
    classes = len(task.labels)
    single = [str(label) for label, seen in zip(task.labels, task.seen, strict=True) if seen == 1]
    if single and (coreset or (samples > 1 and len(single) == classes)):
        shown = ", ".join(single[:SHOWN]) + (", …" if len(single) > SHOWN else "")
        _warn(
            f"task {name!r} has a single sample of {len(single)} of its {classes} classes ({shown}): answers about "
            "them are guesses"
        )
    if "lr_factor" in notes:
        _warn(
            f"the loss of task {name!r} stopped being finite; it was learned with {notes['lr_factor']:g} times the "
            "learning rate"
        )
    accuracy = notes.get("held_out_accuracy")
    if accuracy is not None and accuracy < NO_BETTER_THAN_CHANCE * 100.0 / classes:
        _warn(
            f"task {name!r} was learned no better than by chance: {accuracy:.1f} % of its {notes['held_out']} "
            f"held-out samples are right, and guessing among {classes} classes gives {100.0 / classes:.1f} %"
        )


def _warn(message: str) -> None:
    warnings.warn(message, KclWarning, stacklevel=6)
