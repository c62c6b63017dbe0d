"""The state of a command whose runs are done by many workers, for the live page: `standing.json` beside the results."""

from __future__ import annotations

import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from kcl.core.files import read_json
from kcl.errors import KclError
from kcl.report.formatting import MISSING
from kcl.report.page_parts import data, facts, grid, head, row

STALE = 60.0
"""Seconds after which the writer is assumed to have ended."""
_COUNTS = ("total", "queued", "running", "done", "failed")
_COLUMNS = ("worker", "runs", "runs_per_hour", "doing")


def standings(files: Iterable[Path], now: float | None = None) -> list[dict[str, Any]]:
    """The files that can be read and are not stale. Others are skipped: this is only a view."""
    statuses = []
    for file in files:
        try:
            status = read_json(file)
        except KclError:  # it is being replaced, or is gone
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


def standing_html(status: dict[str, Any]) -> str:
    """One command's counts, and a row for every worker."""
    values = {name: str(status[name]) for name in _COUNTS}
    for name, unit in (("average_accuracy", " %"), ("seconds_left", " s")):
        value = status.get(name)
        values[name.replace("_", " ")] = f"{value:.1f}{unit}" if isinstance(value, int | float) else MISSING
    rows = [row(*(data(str(worker.get(name, MISSING))[:200]) for name in _COLUMNS)) for worker in status["workers"]]
    return facts(values) + grid("Workers", [head(name.replace("_", " ")) for name in _COLUMNS], rows[:1000])
