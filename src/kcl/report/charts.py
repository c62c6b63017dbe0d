"""The interactive part of the page: filters, charts, the table of all runs, and the scripts behind them."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from functools import cache
from html import escape
from importlib import resources
from typing import NamedTuple

from kcl.report.groups import SeedGroup
from kcl.report.page_data import page_data, safe_json
from kcl.report.vendor import plotly


class _Chart(NamedTuple):
    name: str
    heading: str
    controls: str = ""


# Each may use what stands before it.
_PARTS = ("shared", "numbers", "choice", "traces", "charts", "drawing", "controls")
_MEASURES = {"bytes": "memory kept", "seconds": "time", "cost": "cost"}
_BANDS = {"interval": "95 % interval", "deviation": "standard deviation", "runs": "each run"}


def charts(groups: Sequence[SeedGroup]) -> str:
    """Everything that the script fills, in reading order."""
    shown = '<label class="wide">of <select id="shown"></select></label>'
    price = '<label hidden>price of an hour <input id="price" type="number" min="0" step="any" value="1"></label>'
    drawn = (
        _Chart("average", "Average accuracy over tasks"),
        _Chart("forgetting", "Forgetting per task"),
        _Chart("tasks", "Accuracy of each task over time", shown),
        _Chart("matrix", "Accuracy matrix"),
        _Chart("cost", "Accuracy against memory, time and cost", _select("measure", "against", _MEASURES) + price),
    )
    return (
        '<section id="charts"><h2>Charts</h2>'
        "<noscript><p>The charts need JavaScript; the tables do not.</p></noscript>"
        f'{_filters()}<div class="charts">{"".join(map(_chart, drawn))}</div></section>'
        '<section id="runs"><h2>Runs</h2><div class="row"><p class="muted" id="runs-count" aria-live="polite"></p>'
        '<button type="button" id="csv-runs">CSV of these runs</button></div>'
        '<div class="scroll tall" id="runs-table" tabindex="0" role="region" aria-label="all runs"></div>'
        '<p class="muted">Seconds are a run’s share of the time its command took: runs trained together share it; '
        "runs that share one training each count all of it.</p>"
        "</section>"
        f'<script type="application/json" id="data">{safe_json(page_data(groups))}</script>'
    )


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


@cache
def _scripts() -> tuple[str, str]:
    folder = resources.files("kcl.report").joinpath("script")
    parts = "".join(folder.joinpath(f"{name}.js").read_text(encoding="utf-8") for name in _PARTS)
    return plotly(), f'"use strict";\n(() => {{\n{parts}}})();\n'


def _filters() -> str:
    choices = "".join(
        f'<label>{name} <select id="{name}"></select></label>' for name in ("benchmark", "method", "kernel")
    )
    return (
        f'<form class="filters" aria-label="filters"><div class="row">{choices}{_select("band", "band", _BANDS)}</div>'
        '<fieldset><legend>runs to compare</legend><div class="boxes" id="groups"></div><div class="row">'
        '<button type="button" id="choose-all">all</button><button type="button" id="choose-none">none</button>'
        "</div></fieldset>"
        '<details><summary>seeds</summary><div class="boxes" id="seeds"></div></details></form>'
    )


def _select(name: str, label: str, options: dict[str, str]) -> str:
    shown = "".join(f'<option value="{value}">{text}</option>' for value, text in options.items())
    return f'<label>{label} <select id="{name}">{shown}</select></label>'


def _chart(chart: _Chart) -> str:
    name, heading = chart.name, escape(chart.heading)
    buttons = "".join(
        f'<button type="button" id="{kind}-{name}" aria-label="{heading} as {kind.upper()}">{kind.upper()}</button>'
        for kind in ("svg", "csv")
    )
    return (
        f'<figure id="figure-{name}"><div class="row"><h3>{heading}</h3><span class="buttons">{buttons}</span></div>'
        f"{f'<div class=row>{chart.controls}</div>' if chart.controls else ''}"
        f'<div class="chart" id="chart-{name}" role="img"></div>'
        f'<figcaption id="words-{name}"></figcaption>'
        f'<details id="numbers-{name}"><summary>numbers</summary>'
        f'<div class="scroll" tabindex="0" role="region" aria-label="{heading}, numbers"></div></details></figure>'
    )
