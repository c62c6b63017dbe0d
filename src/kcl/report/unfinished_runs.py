"""Runs that are not finished, from the metrics.csv beside the results: for the live page."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

_MOST_BYTES = 16 * 2**20


class Running(NamedTuple):
    run: str
    benchmark: str
    tasks_learned: int
    tasks: int
    average_accuracy: str
    forgetting: str


def running(files: Iterable[Path]) -> list[Running]:
    """The newest row of every run that has tasks left. Unreadable rows are skipped: this is only a view."""
    newest: dict[tuple[Path, str], Running] = {}
    for file in files:
        for row in _rows(file):
            newest[file, row.run] = row
    return [row for row in newest.values() if row.tasks_learned < row.tasks]


def _rows(file: Path) -> Sequence[Running]:
    rows = []
    try:
        if file.stat().st_size > _MOST_BYTES:
            return ()
        with file.open(newline="", encoding="utf-8", errors="replace") as opened:
            for row in csv.DictReader(opened):
                try:
                    learned, tasks = int(row["tasks_learned"]), int(row["tasks"])
                    accuracy, forgetting = (
                        f"{float(row[name]):.{digits}f}" if row[name] else "–"
                        for name, digits in (("average_accuracy", 2), ("forgetting", 3))
                    )
                    rows.append(Running(row["run"], row["benchmark"], learned, tasks, accuracy, forgetting))
                except (KeyError, TypeError, ValueError):  # a row that is being written
                    continue
    except (OSError, csv.Error):
        return rows
    return rows
