"""The data of the page's script: every run's accuracies and costs, as JSON that is safe inside HTML."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from kcl.report.groups import Record, SeedGroup, title
from kcl.report.headline import column_of, row_labels
from kcl.report.summary import student_t


def page_data(groups: Sequence[SeedGroup]) -> dict[str, Any]:
    """Groups with their runs, the distinct commands, and Student's t for as many seeds as a group has."""
    commands: dict[str | None, int] = {}
    columns: dict[str, list[SeedGroup]] = {}
    for group in groups:
        columns.setdefault(str(column_of(group)), []).append(group)
    most = max((len(group.runs) for group in groups), default=0)
    return {
        "groups": [
            _group(group, column, label, commands)
            for column, members in columns.items()
            for group, label in zip(members, row_labels(members), strict=True)
        ],
        "commands": list(commands),
        "t": [round(student_t(degrees), 4) for degrees in range(1, max(2, most))],
    }


def safe_json(value: Any) -> str:
    """JSON without characters that are special in HTML, so that no text from a results file can end the script."""
    text = json.dumps(value, allow_nan=False, separators=(",", ":"))  # ASCII only: lone surrogates stay escapes
    for mark in "<>&":
        text = text.replace(mark, f"\\u{ord(mark):04x}")
    return text


def _group(group: SeedGroup, column: str, label: str, commands: dict[str | None, int]) -> dict[str, Any]:
    runs = sorted((*group.runs, *group.diverged), key=lambda run: run["seed"])
    return {
        "benchmark": column,
        "label": label,
        "method": title(runs[0]["method"], None),
        "kernel": runs[0]["kernel"],
        "tasks": group.tasks,
        "history": bool(group.runs) and group.has_history,
        "runs": [_run(run, commands) for run in runs],
    }


def _run(run: Record, commands: dict[str | None, int]) -> dict[str, Any]:
    kept = run["memory"].get("bytes")
    return {
        "seed": str(run["seed"]),  # a seed may be larger than JavaScript counts
        "diverged": run["diverged"],
        "average": _rounded(run["average_accuracy"], 3),
        "forgetting": _rounded(run["forgetting"], 4),
        "learning": _rounded(run["learning_accuracy"], 3),
        "seconds": _rounded(run["seconds"], 3),
        "together": together if type(together := run.get("runs_at_once")) is int and together > 0 else 1,
        "bytes": kept if type(kept) is int else None,
        "device": run["device"],
        "command": commands.setdefault(run["command"], len(commands)),
        # Row t up to task t: tasks beyond it are not learned yet, or were not evaluated.
        "matrix": [
            [_rounded(value, 2) for value in row[: learned + 1]] for learned, row in enumerate(run["accuracy_matrix"])
        ],
    }


def _rounded(value: float | None, digits: int) -> float | None:
    return None if value is None else round(value, digits)
