"""Work that is not finished, for the live page: runs from `metrics.csv`, workers from `standing.json`.

This is only a view: a file that is being written, is damaged or is gone is skipped.
"""

from __future__ import annotations

import csv
import os
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from kcl.core.files import read_json
from kcl.core.opening import regular
from kcl.errors import KclError
from kcl.report.formatting import MISSING
from kcl.report.page_parts import facts, table

STALE = 60.0
"""Seconds after which the writer of a status file is assumed to have ended."""
_MOST_BYTES = 16 * 2**20
_COUNTS = ("total", "queued", "running", "done", "failed")
_WORKER_COLUMNS = ("worker", "runs", "runs_per_hour", "doing")


class Running(NamedTuple):
    run: str
    benchmark: str
    tasks_learned: int
    tasks: int
    average_accuracy: str
    forgetting: str


def running(files: Iterable[Path]) -> list[Running]:
    """The newest row of every run that has tasks left."""
    newest = {(file, row.run): row for file in files for row in _rows(file)}
    return [row for row in newest.values() if row.tasks_learned < row.tasks]


def _rows(file: Path) -> Iterator[Running]:
    try:
        with open(file, newline="", encoding="utf-8", errors="replace", opener=regular) as opened:
            if os.fstat(opened.fileno()).st_size > _MOST_BYTES:
                return
            for row in csv.DictReader(opened):
                try:
                    learned, tasks = int(row["tasks_learned"]), int(row["tasks"])
                    accuracy, forgetting = (
                        f"{float(row[name]):.{digits}f}" if row[name] else MISSING
                        for name, digits in (("average_accuracy", 2), ("forgetting", 3))
                    )
                    yield Running(row["run"], row["benchmark"], learned, tasks, accuracy, forgetting)
                except (KeyError, TypeError, ValueError):  # a row that is being written
                    continue
    except (OSError, csv.Error):
        return


def engine_statuses(files: Iterable[Path], now: float | None = None) -> list[dict[str, Any]]:
    """The state of commands whose runs are done by many workers, unless it is stale."""
    statuses = []
    for file in files:
        try:
            status = read_json(file)
        except KclError:
            continue
        if _is_valid(status) and (time.time() if now is None else now) - status["time"] < STALE:
            statuses.append(status)
    return statuses


def _is_valid(status: Any) -> bool:
    if not isinstance(status, dict) or status.get("format") != 1 or not isinstance(status.get("time"), int | float):
        return False
    workers = status.get("workers")
    return (
        all(type(status.get(name)) is int for name in _COUNTS)
        and isinstance(workers, list)
        and all(isinstance(worker, dict) for worker in workers)
    )


def unfinished_html(runs: Iterable[Running], statuses: Iterable[dict[str, Any]]) -> str:
    """The counts and workers of every command, and a row for every run."""
    parts = []
    for status in statuses:
        values = {name: str(status[name]) for name in _COUNTS}
        for name, unit in (("average_accuracy", " %"), ("seconds_left", " s")):
            value = status.get(name)
            values[name.replace("_", " ")] = f"{value:.1f}{unit}" if isinstance(value, int | float) else MISSING
        workers = [[str(worker.get(name, MISSING))[:200] for name in _WORKER_COLUMNS] for worker in status["workers"]]
        header = [name.replace("_", " ") for name in _WORKER_COLUMNS]
        parts.append(facts(values) + table("Workers", header, workers[:1000]))
    if rows := [list(map(str, run)) for run in runs]:
        header = [name.replace("_", " ") for name in Running._fields]
        parts.append(table("After the newest task of each unfinished run", header, rows))
    return "".join(parts)
