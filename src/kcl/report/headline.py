"""The one table to look at first: methods down, benchmarks across, the best marked where it stands out."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, NamedTuple

from kcl.report.curves import has_history
from kcl.report.groups import CHOICES, Group, Record, differing, show, title
from kcl.report.published import Published, published
from kcl.report.results_table import number
from kcl.report.significance import stands_out
from kcl.report.summary import Summary

_CONDITION = ("tasks", *CHOICES)


class Cell(NamedTuple):
    """A method on a benchmark: average accuracy over seeds, and what the paper prints for it."""

    summary: Summary
    best: bool
    published: Published | None

    def __str__(self) -> str:
        mean, half_width = number(self.summary.mean, 2), self.summary.half_width
        return mean if half_width is None else f"{mean} ± {number(half_width, 2)}"


class Column(NamedTuple):
    """A benchmark under one condition: as many tasks, samples and classes. Only within a column may one compare."""

    benchmark: str
    condition: dict[str, Any]

    def __str__(self) -> str:
        words = in_words(self.condition)
        return f"{self.benchmark} ({words})" if words else self.benchmark


class Row(NamedTuple):
    label: str
    cells: list[Cell | None]
    """One for each column; None where the method was not run, or every run of it diverged."""


def headline(groups: Sequence[Group]) -> tuple[list[Column], list[Row]]:
    """The columns and rows, in the order in which they first appear."""
    members: dict[str, list[Group]] = {}
    columns: dict[str, Column] = {}
    for group in groups:
        place = column_of(group)
        key = json.dumps(place, sort_keys=True)
        columns.setdefault(key, place)
        members.setdefault(key, []).append(group)
    table: dict[str, dict[str, Cell]] = {}
    for key, rivals in members.items():
        best = _best(rivals)
        for group, label in zip(rivals, row_labels(rivals), strict=True):
            cells = table.setdefault(label, {})
            if accuracy := group.summary("average_accuracy"):
                cells[key] = Cell(accuracy, group is best, _published(group))
    rows = [Row(label, [cells.get(key) for key in columns]) for label, cells in table.items()]
    return list(columns.values()), rows


def column_of(group: Group) -> Column:
    return Column(group.benchmark, {name: group.settings[name] for name in _CONDITION if name in group.settings})


def row_labels(groups: Sequence[Group]) -> list[str]:
    """What tells the groups of one column apart: the method, its kernel, and the settings that differ within them."""
    settings = [{name: value for name, value in group.settings.items() if name not in _CONDITION} for group in groups]
    titles = [title(_first(group)["method"], _first(group)["kernel"]) for group in groups]
    told = {
        name: differing([own for same, own in zip(titles, settings, strict=True) if same == name])
        for name in dict.fromkeys(titles)
    }
    return [
        ", ".join([name, *(f"{setting} {show(own.get(setting))}" for setting in told[name])])
        for name, own in zip(titles, settings, strict=True)
    ]


def in_words(condition: dict[str, Any]) -> str:
    words = {
        "tasks": lambda value: f"{show(value)} task{'' if value == 1 else 's'}",
        "train_per_task": lambda value: f"{show(value)} samples a task",
        "ways": lambda value: (
            f"{'–'.join(map(show, value[:2])) if isinstance(value, list) else show(value)} ways"
            + "".join(f" in {show(tasks)} tasks" for tasks in (value[2:] if isinstance(value, list) else []))
        ),
        "class_order": lambda value: "" if value == "fixed" else f"{show(value)} classes",
        "image_size": lambda value: f"{show(value)} pixels",
        "data": lambda value: f"data {show(value)[:12]}",
    }
    return ", ".join(text for name, value in condition.items() if (text := words[name](value)))


def _best(groups: Sequence[Group]) -> Group | None:
    """The group whose mean stands out. One that was tested only at the end, as multi-task training, is a bound."""
    rivals = [group for group in groups if group.runs and has_history(group)]
    if len(rivals) < 2:
        return None
    scores = [{run["seed"]: run["average_accuracy"] for run in group.runs} for group in rivals]
    means = [sum(own.values()) / len(own) for own in scores]
    place = means.index(max(means))
    others = [own for index, own in enumerate(scores) if index != place]
    return rivals[place] if stands_out(scores[place], others) else None


def _published(group: Group) -> Published | None:
    run = _first(group)
    return published(group.benchmark, run["method"], run["kernel"], column_of(group).condition, group.settings)


def _first(group: Group) -> Record:
    return (*group.runs, *group.diverged)[0]
