"""`samples.jsonl` in the page: what the tasks look like, what was kept of them, what was taken for something else."""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any

from kcl.report.groups import Group, Record, title
from kcl.report.headline import column_of

BUDGET = 2_000_000
"""Bytes of images a page may hold: it stays below five megabytes."""
_PNG = b"\x89PNG\r\n\x1a\n"
_COLUMNS = {"samples": "test samples", "coreset": "coreset", "mistakes": "most confident mistakes"}
_IDENTITY = ("benchmark", "method", "kernel", "seed", "settings", "tasks")

Samples = dict[str, Any]


def read_samples(file: Path) -> list[Samples]:
    """What can be read: images are an extra, and a line that is torn or of another kind is no reason for no page."""
    try:
        lines = file.read_bytes().splitlines()
    except OSError:
        return []
    found = []
    for line in lines:
        try:
            value = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(value, dict) and value.get("format") == 1 and isinstance(value.get("samples"), list):
            found.append(value)
    return found


def key(record: Record | Samples) -> str:
    """The same for a run's record and for its samples."""
    return json.dumps({name: record.get(name) for name in _IDENTITY}, sort_keys=True)


def samples_html(groups: Sequence[Group], samples: Sequence[Samples]) -> str:
    """A table for the first run of each group that has samples; empty where none has."""
    known = {key(own): own for own in samples}
    parts: list[str] = []
    size = left_out = 0
    for group in groups:
        found = next((known[own] for run in group.runs if (own := key(run)) in known), None)
        if found is None:
            continue
        name = f"{title(found['method'], found['kernel'])} on {column_of(group)}"
        table = _table(f"{name}, seed {found['seed']}", found["samples"])
        if size + len(table) > BUDGET:
            left_out += 1
            continue
        size += len(table)
        opened = "" if parts else " open"
        parts.append(f"<details{opened}><summary>{escape(name)}</summary>{table}</details>")
    if not parts and not left_out:
        return ""
    note = "As the network sees them, at the end of a run. A mistake: what was said, how surely, and for what."
    more = f" Of {left_out} more the images would make this page too large." if left_out else ""
    return f'<p class="muted">{note}{more}</p>{"".join(parts)}'


def _table(caption: str, tasks: Sequence[Any]) -> str:
    shown = [name for name in _COLUMNS if any(isinstance(task, dict) and task.get(name) for task in tasks)]
    head = "".join(f'<th scope="col">{_COLUMNS[name]}</th>' for name in shown)
    body = "".join(
        f'<tr><th scope="row">task {index}</th>'
        f"{''.join(f'<td>{_images(task.get(name), name)}</td>' for name in shown)}</tr>"
        for index, task in enumerate(tasks)
        if isinstance(task, dict)
    )
    return (
        f'<div class="scroll tall" tabindex="0" role="region" aria-label="{escape(caption)}"><table class="grid seen">'
        f"<caption>{escape(caption)}</caption><thead><tr><th></th>{head}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def _images(found: Any, name: str) -> str:
    images = [_image(one, name) for one in found if isinstance(one, dict)] if isinstance(found, list) else []
    return f'<div class="images">{"".join(images)}</div>'


def _image(one: dict[str, Any], name: str) -> str:
    content = _png(one.get("png"))
    if content is None:
        return ""
    label, said, confidence = str(one.get("label", ""))[:40], str(one.get("said", ""))[:40], one.get("confidence")
    words = label
    if name == "mistakes":
        sure = f" ({confidence:.0%})" if isinstance(confidence, float) else ""
        words = f"{said}{sure} for {label}"
    alternative = escape({"coreset": "a sample of the coreset", "mistakes": f"a mistake: {words}"}.get(name, words))
    below = f"<small>{escape(words)}</small>" if words else ""
    return f'<span><img alt="{alternative}" src="data:image/png;base64,{content}">{below}</span>'


def _png(text: Any) -> str | None:
    """The text again if it is the base64 of a PNG: nothing else of the file gets into an attribute unescaped."""
    if not isinstance(text, str):
        return None
    try:
        content = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        return None
    return base64.b64encode(content).decode() if content.startswith(_PNG) else None
