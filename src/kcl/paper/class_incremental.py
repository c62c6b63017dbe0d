"""Beyond the paper: answers over all classes, where nobody names the task; KCL's heads beside methods that replay."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

from kcl.methods.recipes import find_method
from kcl.paper.cell import Cell, FinishedRuns
from kcl.paper.columns import COMMAND, COST, COST_NOTE, MEASURED, SPREAD, Column, measure
from kcl.paper.item import CellTables, Part
from kcl.report.published import CIFAR100, MINIIMAGENET, PERMUTED, ROTATED

COVARIANCE = {"class_head": "shared-covariance", "class_features": "linear"}
MATCHED = {"matched_targets": True}
HEADS: Mapping[str, Mapping[str, Any]] = {
    "KCL, shared covariance, matched targets": COVARIANCE | MATCHED,
    "KCL, shared covariance": COVARIANCE,
    "KCL, joint ridge on ReLU features": {},
    "KCL, joint ridge on linear features": {"class_features": "linear"},
    "KCL, class means": {"class_head": "class-means", "class_features": "linear"},
}
NAMED: Mapping[str, Mapping[str, Any]] = {"KCL, the task named": {}, "KCL, the task named, matched targets": MATCHED}
"""Rows with and without matched targets share one training each."""
LIGHT, LIGHT_NAMED = "KCL, light recipe", "KCL, the task named, light recipe"
"""Beside the strong recipe; both rows share one training."""
OTHERS = {
    "ER-Reservoir": "er-reservoir",
    "ER-ACE": "er-ace",
    "DER++": "der++",
    "A-GEM": "a-gem",
    "EWC": "ewc",
    "naive SGD": "naive-sgd",
    "joint training": "multi-task",
}
MEMORY = {MINIIMAGENET: 30}
"""Samples per class and task, KCL's, where they are not 20."""


class ClassIncrementalTables(CellTables):
    """One table for each stream."""

    place = "Beyond the paper (docs/class-incremental.md)"
    in_paper = False
    row_heading = "method"
    level = "###"
    streams: ClassVar[Sequence[tuple[str, Cell]]]
    """The scenario of each stream, and what all its cells share."""
    legend = (
        f"{SPREAD} Accuracy: average accuracy after the last task, over all classes. Incremental accuracy: average "
        f"accuracy after each task, averaged over the stream. Task right: answers from the right task. {COST_NOTE}"
    )
    miniature_note = "The MLP sees no images: the miniature's recipe has no rotation labels, views and stages."

    def columns(self) -> Sequence[Column]:
        further = (
            measure("incremental %", "incremental accuracy", "average_incremental_accuracy", 2),
            measure("task right %", "task right", "task_accuracy", 2),
        )
        return (*MEASURED, *further, *COST, COMMAND)

    def cells(self) -> list[Cell]:
        return [cell for stream in self.streams for cell in _rows(*stream)]

    def parts(self, runs: FinishedRuns) -> list[Part]:  # noqa: ARG002
        return [Part(_rows(scenario, shared), shared.column) for scenario, shared in self.streams]


def _rows(scenario: str, shared: Cell) -> list[Cell]:
    """All methods on a stream."""
    free = {"scenario": scenario}
    cells = [replace(shared, row=row, changes={**free, **changes}) for row, changes in HEADS.items()]
    cells += [replace(shared, row=row, changes=changes) for row, changes in NAMED.items()]
    if shared.recipe == "strong":
        light = replace(shared, recipe="light")
        cells = [replace(light, row=LIGHT, changes=free), *cells, replace(light, row=LIGHT_NAMED)]
    for row, method in OTHERS.items():
        kind = find_method(method)
        changes: dict[str, Any] = free | ({"softmax": "all"} if "softmax" in kind.settings_type.names() else {})
        if kind.memory_setting is not None:
            changes |= {kind.memory_setting: MEMORY.get(shared.benchmark, 20)}
        cells.append(replace(shared, row=row, method=method, changes=changes))
    return cells


class ClassIncremental(ClassIncrementalTables):
    name = "class-incremental"
    title = "Answers over all classes, with the strong and the light recipe"
    note = (
        "Every method has the strong recipe's backbone, optimiser and views, and as many stored samples; the baselines "
        "are trained among all classes of the stream. KCL replays nothing. Its rows come from three trainings: with "
        "matched targets, without, and by the light recipe, which makes four updates per batch of images and not two."
    )
    streams = (
        ("class", Cell("", CIFAR100, recipe="strong")),
        ("class", Cell("", CIFAR100, recipe="strong", ways=10)),
        ("class", Cell("", MINIIMAGENET, recipe="strong")),
        ("domain", Cell("", PERMUTED, recipe="strong")),
        ("domain", Cell("", ROTATED, recipe="strong")),
    )


class ClassIncrementalSmall(ClassIncrementalTables):
    name = "class-incremental-small"
    title = "Answers over all classes: short streams, for a CPU"
    note = "The paper's recipe, a few tasks and samples: it shows that everything works, not what it comes to."
    streams = (
        ("class", Cell("", CIFAR100, tasks=2, train_per_task=250)),
        ("domain", Cell("", PERMUTED, tasks=3, train_per_task=1000)),
        ("domain", Cell("", ROTATED, tasks=3, train_per_task=1000)),
    )
