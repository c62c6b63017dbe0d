"""The table to look at first: methods down, benchmarks across, the best marked where it is significantly better."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import fmean
from typing import Any, NamedTuple

from kcl.report.formatting import spread
from kcl.report.groups import STREAM_CHOICES, SeedGroup, setting_labels, show, title
from kcl.report.published import PaperResult, published
from kcl.report.summary import Summary, stands_out

_CONDITION = ("scenario", "tasks", *STREAM_CHOICES)


class HeadlineCell(NamedTuple):
    """A method on a benchmark: average accuracy over seeds, and the value that the paper prints for it."""

    summary: Summary
    best: bool
    published: PaperResult | None

    def __str__(self) -> str:
        return spread(self.summary, 2)


def headline(groups: Sequence[SeedGroup]) -> tuple[list[str], dict[str, list[HeadlineCell | None]]]:
    """The columns, and the rows by their labels, in the order in which they first appear.

    A row has a cell for each column: None where the method was not run, or every run of it diverged.
    """
    columns = by_column(groups)
    table: dict[str, dict[str, HeadlineCell]] = {}
    for column, rivals in columns.items():
        best = _best(rivals)
        for group, label in zip(rivals, row_labels(rivals), strict=True):
            cells = table.setdefault(label, {})
            if accuracy := group.summary("average_accuracy"):
                printed = published(group.benchmark, group.method, group.kernel, group.settings)
                cells[column] = HeadlineCell(accuracy, group is best, printed)
    return list(columns), {label: [cells.get(column) for column in columns] for label, cells in table.items()}


def by_column(groups: Sequence[SeedGroup]) -> dict[str, list[SeedGroup]]:
    """The groups of each column: only results of one column are comparable."""
    columns: dict[str, list[SeedGroup]] = {}
    for group in groups:
        columns.setdefault(column_of(group), []).append(group)
    return columns


def column_of(group: SeedGroup) -> str:
    """The benchmark and its condition: number of tasks, samples and classes."""
    words = in_words({name: group.settings[name] for name in _CONDITION if name in group.settings})
    return f"{group.benchmark} ({words})" if words else group.benchmark


def row_labels(groups: Sequence[SeedGroup]) -> list[str]:
    """Labels for the groups of one column: the method, its kernel, and the settings that differ within them."""
    settings = [{name: value for name, value in group.settings.items() if name not in _CONDITION} for group in groups]
    return setting_labels([title(group.method, group.kernel) for group in groups], settings)


def in_words(condition: dict[str, Any]) -> str:
    words: dict[str, Callable[[Any], str]] = {
        "scenario": lambda value: "" if value == "task" else f"{show(value)}-incremental",
        "tasks": lambda value: f"{show(value)} task{'' if value == 1 else 's'}",
        "train_per_task": lambda value: f"{show(value)} samples per task",
        "ways": lambda value: (
            f"{'–'.join(map(show, value[:2])) if isinstance(value, list) else show(value)} ways"
            + "".join(f" in {show(tasks)} tasks" for tasks in (value[2:] if isinstance(value, list) else []))
        ),
        "class_order": lambda value: "" if value == "fixed" else f"{show(value)} classes",
        "image_size": lambda value: f"{show(value)} pixels",
        "data": lambda value: f"data {show(value)[:12]}",
        "held_out": lambda value: f"{show(value)} held out",
    }
    return ", ".join(text for name, value in condition.items() if (text := words[name](value)))


def _best(groups: Sequence[SeedGroup]) -> SeedGroup | None:
    """The group whose mean stands out. Multi-task training, which is tested only at the end, is a bound: left out."""
    rivals = [group for group in groups if group.runs and group.has_history]
    if len(rivals) < 2:
        return None
    accuracies = [{run["seed"]: run["average_accuracy"] for run in group.runs} for group in rivals]
    place = max(range(len(rivals)), key=lambda index: fmean(accuracies[index].values()))
    best = accuracies.pop(place)
    return rivals[place] if stands_out(best, accuracies) else None
