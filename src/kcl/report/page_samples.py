"""`samples.jsonl` in the page: samples of the tasks, coresets, and the most confident mistakes."""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any

from kcl.core.opening import regular
from kcl.report.groups import Record, SeedGroup, title
from kcl.report.headline import column_of
from kcl.report.page_parts import Html, muted, table

MOST_BYTES = 256 * 2**20
"""Of a longer file only what comes first is read."""
BUDGET = 2_000_000
"""Bytes of images a page may hold: it stays below five megabytes."""
_PNG = b"\x89PNG\r\n\x1a\n"
_COLUMNS = {"samples": "test samples", "coreset": "coreset", "mistakes": "most confident mistakes"}
_IDENTITY = ("benchmark", "method", "kernel", "seed", "settings", "tasks")

SavedSamples = dict[str, Any]


def read_samples(file: Path) -> list[SavedSamples]:
    """All lines that can be read: images are an extra, and a damaged or foreign line must not prevent the page."""
    try:
        with open(file, "rb", opener=regular) as opened:
            content = opened.read(MOST_BYTES)
    except OSError:
        return []
    samples = []
    for line in content.splitlines():
        try:
            value = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(value, dict) and value.get("format") == 1 and isinstance(value.get("samples"), list):
            samples.append(value)
    return samples


def key(record: Record | SavedSamples) -> str:
    """The same for a run's record and for its samples."""
    return json.dumps({name: record.get(name) for name in _IDENTITY}, sort_keys=True)


def samples_html(groups: Sequence[SeedGroup], samples: Sequence[SavedSamples]) -> str:
    """A table for the first run of each group that has samples; empty if none has."""
    by_run = {key(each): each for each in samples}
    parts: list[str] = []
    size = left_out = 0
    for group in groups:
        shown = next((by_run[name] for run in group.runs if (name := key(run)) in by_run), None)
        if shown is None:
            continue
        name = f"{title(shown['method'], shown['kernel'])} on {column_of(group)}"
        samples_table = _table(f"{name}, seed {shown['seed']}", shown["samples"])
        if size + len(samples_table) > BUDGET:
            left_out += 1
            continue
        size += len(samples_table)
        opened = "" if parts else " open"
        parts.append(f"<details{opened}><summary>{escape(name)}</summary>{samples_table}</details>")
    if not parts and not left_out:
        return ""
    note = "As the network sees them, at the end of a run. A mistake: the answer, its confidence, and the true class."
    more = f" The images of {left_out} more would make this page too large." if left_out else ""
    return muted(f"{note}{more}") + "".join(parts)


def _table(caption: str, tasks: Sequence[Any]) -> str:
    shown = [name for name in _COLUMNS if any(isinstance(task, dict) and task.get(name) for task in tasks)]
    rows = [
        [f"task {index}", *(_images(task.get(name), name) for name in shown)]
        for index, task in enumerate(tasks, 1)
        if isinstance(task, dict)
    ]
    return table(caption, ["", *(_COLUMNS[name] for name in shown)], rows, row_heads=True, tall=True)


def _images(entries: Any, name: str) -> Html:
    images = ""
    for entry in entries if isinstance(entries, list) else []:
        content = _png(entry.get("png")) if isinstance(entry, dict) else None
        if content is None:
            continue
        words, confidence = str(entry.get("label", ""))[:40], entry.get("confidence")
        if name == "mistakes":
            sure = f" ({confidence:.0%})" if isinstance(confidence, float) else ""
            words = f"{str(entry.get('said', ''))[:40]}{sure} for {words}"
        alternative = escape({"coreset": "a sample of the coreset", "mistakes": f"a mistake: {words}"}.get(name, words))
        below = f"<small>{escape(words)}</small>" if words else ""
        images += f'<span><img alt="{alternative}" src="data:image/png;base64,{content}">{below}</span>'
    return Html(f'<div class="images">{images}</div>')


def _png(text: Any) -> str | None:
    """The text if it is the base64 of a PNG: nothing else from the file enters an attribute unescaped."""
    try:
        content = base64.b64decode(text, validate=True)
    except (TypeError, ValueError):
        return None
    return base64.b64encode(content).decode() if content.startswith(_PNG) else None
