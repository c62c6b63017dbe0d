"""The interactive part of the page: filters, charts, the table of all runs, and the scripts and data behind them."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Sequence
from functools import cache
from importlib import resources
from string import Template
from typing import Any

from kcl.errors import KclError
from kcl.report.groups import Record, SeedGroup, title
from kcl.report.headline import by_column, row_labels
from kcl.report.summary import student_t

# The plotting library of the page, as its makers release it: nothing is fetched when a page is written or read.
# plotly.js-cartesian-dist-min 4.1.1 of the npm registry, MIT (`plotly-LICENSE`): lines, bars and heat maps.
PLOTLY_VERSION = "4.1.1"
PLOTLY_SHA256 = "79542150855a52c567260e3137095dbe2b744e6d702a5cabe67da246942fba7a"
# Each may use what stands before it.
_PARTS = ("shared", "numbers", "choice", "traces", "charts", "drawing", "controls")
_SHOWN = '<div class="row"><label class="wide">of <select id="shown"></select></label></div>'
_MEASURE = """<div class="row"><label>against <select id="measure"><option value="bytes">memory kept</option>
<option value="seconds">time</option><option value="cost">cost</option></select></label>
<label hidden>price of an hour <input id="price" type="number" min="0" step="any" value="1"></label></div>"""
_FIGURES = {
    "average": ("Average accuracy over tasks", ""),
    "forgetting": ("Forgetting per task", ""),
    "tasks": ("Accuracy of each task over time", _SHOWN),
    "matrix": ("Accuracy matrix", ""),
    "cost": ("Accuracy against memory, time and cost", _MEASURE),
}
"""Heading and controls of each chart, in reading order."""


def charts(groups: Sequence[SeedGroup]) -> str:
    """Everything that the script fills."""
    figures = [
        Template(page_file("figure.html")).substitute(name=name, heading=heading, controls=controls)
        for name, (heading, controls) in _FIGURES.items()
    ]
    return Template(page_file("charts.html")).substitute(figures="".join(figures), data=_safe_json(_page_data(groups)))


def scripts() -> str:
    """The plotting library and the page's script, inline: the page is one file."""
    return "".join(f"<script>{script}</script>" for script in _scripts())


def policy(live: bool) -> str:
    """The content security policy: only these two scripts may run, and only a live page may contact its server.

    A script smuggled in through a results file has another hash, and does not run.
    """
    hashes = " ".join(
        f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'" for script in _scripts()
    )
    asks = "; connect-src 'self'" if live else ""
    return f"default-src 'none'; style-src 'unsafe-inline'; img-src data: blob:; script-src {hashes}{asks}"


def page_file(name: str) -> str:
    """A part of the page that stands in a file of its own: markup, style or script."""
    return resources.files("kcl.report").joinpath("script", name).read_text(encoding="utf-8")


def plotly() -> str:
    """The library, checked to be the one that was taken in."""
    content = resources.files("kcl.report").joinpath("vendor", "plotly-cartesian.min.js").read_bytes()
    if hashlib.sha256(content).hexdigest() != PLOTLY_SHA256:
        raise KclError("the plotting library of the page is not the one kcl came with; install kcl again")
    return content.decode()


@cache
def _scripts() -> tuple[str, str]:
    parts = "".join(page_file(f"{name}.js") for name in _PARTS)
    return plotly(), f'"use strict";\n(() => {{\n{parts}}})();\n'


def _safe_json(value: Any) -> str:
    """JSON without characters that are special in HTML, so that no text from a results file can end the script."""
    text = json.dumps(value, allow_nan=False, separators=(",", ":"))  # ASCII only: lone surrogates stay escapes
    for mark in "<>&":
        text = text.replace(mark, f"\\u{ord(mark):04x}")
    return text


def _page_data(groups: Sequence[SeedGroup]) -> dict[str, Any]:
    """Groups with their runs, the distinct commands, and Student's t for as many seeds as a group has."""
    commands: dict[str | None, int] = {}
    most = max((len(group.runs) for group in groups), default=0)
    return {
        "groups": [
            {
                "benchmark": column,
                "label": label,
                "method": title(group.method, None),
                "kernel": group.kernel,
                "tasks": group.tasks,
                "history": bool(group.runs) and group.has_history,
                "runs": [_run(run, commands) for run in sorted(group.all_runs, key=lambda run: run["seed"])],
            }
            for column, members in by_column(groups).items()
            for group, label in zip(members, row_labels(members), strict=True)
        ],
        "commands": list(commands),
        "t": [round(student_t(degrees), 4) for degrees in range(1, max(2, most))],
    }


def _run(run: Record, commands: dict[str | None, int]) -> dict[str, Any]:
    kept = run["memory"].get("bytes")
    return {
        "seed": str(run["seed"]),  # a seed may be larger than JavaScript counts
        "diverged": run["diverged"],
        "average": run["average_accuracy"],
        "forgetting": run["forgetting"],
        "learning": run["learning_accuracy"],
        "seconds": run["seconds"],
        "together": together if type(together := run.get("runs_at_once")) is int and together > 0 else 1,
        "bytes": kept if type(kept) is int else None,
        "device": run["device"],
        "command": commands.setdefault(run["command"], len(commands)),
        # Row t up to task t: tasks beyond it are not learned yet, or were not evaluated.
        "matrix": [
            [None if value is None else round(value, 2) for value in row[: learned + 1]]
            for learned, row in enumerate(run["accuracy_matrix"])
        ],
    }
