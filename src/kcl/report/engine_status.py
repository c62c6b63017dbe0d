"""Where the runs of a command stand that many workers do, for the live page: `standing.json` beside the results."""

from __future__ import annotations

import time
from collections.abc import Iterable
from html import escape
from pathlib import Path
from typing import Any

from kcl.core.files import read_json
from kcl.errors import KclError

STALE = 60.0
"""Seconds after which whoever wrote it is taken to have gone."""
_COUNTS = ("total", "queued", "running", "done", "failed")


def standings(files: Iterable[Path], now: float | None = None) -> list[dict[str, Any]]:
    """What can be read and is not stale: this is a view, no record."""
    found = []
    for file in files:
        try:
            own = read_json(file)
        except KclError:  # it is being replaced, or has gone
            continue
        if _sound(own) and (time.time() if now is None else now) - own["time"] < STALE:
            found.append(own)
    return found


def _sound(own: Any) -> bool:
    if not isinstance(own, dict) or own.get("format") != 1 or not isinstance(own.get("time"), int | float):
        return False
    workers = own.get("workers")
    return (
        all(type(own.get(name)) is int for name in _COUNTS)
        and isinstance(workers, list)
        and all(isinstance(worker, dict) for worker in workers)
    )


def standing_html(own: dict[str, Any]) -> str:
    """One command's counts, and a row for every worker."""
    facts = {name: str(own[name]) for name in _COUNTS}
    for name, unit in (("average_accuracy", " %"), ("seconds_left", " s")):
        value = own.get(name)
        facts[name.replace("_", " ")] = f"{value:.1f}{unit}" if isinstance(value, int | float) else "–"
    told = "".join(f"<dt>{name}</dt><dd>{escape(fact)}</dd>" for name, fact in facts.items())
    columns = ("worker", "runs", "runs_per_hour", "doing")
    head = "".join(f'<th scope="col">{name.replace("_", " ")}</th>' for name in columns)
    body = "".join(
        "<tr>" + "".join(f"<td>{escape(str(worker.get(name, '–'))[:200])}</td>" for name in columns) + "</tr>"
        for worker in own["workers"][:1000]
    )
    table = f'<table class="grid"><caption>Workers</caption><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>'
    return f"<dl>{told}</dl>{table}"
