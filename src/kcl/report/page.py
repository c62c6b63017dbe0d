"""One HTML page that holds a whole comparison: no network, nothing beside the file."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path
from typing import Any

from kcl.core.files import write_whole
from kcl.report import results_table, significance
from kcl.report.charts import charts, policy, scripts
from kcl.report.engine_status import standing_html
from kcl.report.formatting import number
from kcl.report.groups import Group, Record, differing, group_runs, show, title
from kcl.report.headline import HeadlineCell, headline
from kcl.report.page_samples import Samples, samples_html
from kcl.report.published import SOURCE
from kcl.report.stylesheet import STYLESHEET
from kcl.report.unfinished_runs import Running

_MANY_ROWS = 25
_MANY_COLUMNS = 8  # groups beside each other; more are set below each other, with the settings that differ only


def write_page(records: Sequence[Record], path: str | Path, heading: str, samples: Sequence[Samples] = ()) -> None:
    """Writes the page whole or not at all; the same records give the same bytes."""
    # A lone surrogate cannot be encoded; a question mark in its place beats no page.
    write_whole(path, page(records, heading, samples=samples).encode(errors="replace"))


def page(
    records: Sequence[Record],
    heading: str,
    version: str | None = None,
    unfinished: Sequence[Running] = (),
    samples: Sequence[Samples] = (),
    standing: Sequence[dict[str, Any]] = (),
) -> str:
    """The page as text. With a version it is served live: it asks whether there is a newer one."""
    groups = group_runs(records) if records or version is None else []
    finished = [group for group in groups if group.runs]
    seen = samples_html(finished, samples)
    sections = [
        _section("facts", "What was run", _facts(groups)),
        "" if version is None else _section("running", "Begun and not finished", _running(unfinished, standing)),
        _section("headline", "Average accuracy", _headline(finished)),
        charts(groups) if finished or version is not None else "",
        _section("seen", "What the model sees", seen) if seen else "",
        _section("results", "All results", _results(groups)),
        _section("settings", "Settings", _all_settings(groups)),
        _section("commands", "Commands", _commands(groups)),
    ]
    live = "" if version is None else f' data-version="{escape(version)}"'
    # Without an icon of its own, a served page would be asked for one.
    icon = "" if version is None else '<link rel="icon" href="data:,">\n'
    mark = "" if version is None else '<p class="muted" id="live" role="status">live</p>'
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="{policy(version is not None)}">
<title>{escape(heading)}</title>
{icon}<style>{STYLESHEET}</style>
</head>
<body{live}>
<header><h1>{escape(heading)}</h1>{mark}</header>
<main>
{"".join(sections)}</main>
<footer>Average accuracy is Eq. 12 and forgetting Eq. 13 of Derakhshani, Zhen, Shao and Snoek,
“Kernel continual learning”, ICML 2021. Tasks count from 0. Charts: plotly.js, MIT licence.</footer>
{scripts() if finished or version is not None else ""}
</body>
</html>
"""


def _section(name: str, heading: str, content: str) -> str:
    return f'<section id="{name}" data-fresh>\n<h2>{heading}</h2>\n{content}\n</section>\n'


def _scroll(label: str, content: str, rows: int = 0) -> str:
    """Wide or long content scrolls by itself, by keyboard too: the page stays as wide as the screen."""
    look = "scroll tall" if rows > _MANY_ROWS else "scroll"
    return f'<div class="{look}" tabindex="0" role="region" aria-label="{escape(label)}">{content}</div>'


def _facts(groups: Sequence[Group]) -> str:
    if not groups:
        return '<p class="muted">No run is finished yet.</p>'
    runs = [run for group in groups for run in (*group.runs, *group.diverged)]
    diverged = sum(len(group.diverged) for group in groups)
    seeds = sorted({run["seed"] for run in runs})
    benchmarks = {f"{group.benchmark} ({_count(group.tasks, 'task')})" for group in groups}
    versions = {f"{name} {version}" for run in runs for name, version in run["versions"].items()}
    facts = {
        "benchmarks": ", ".join(sorted(benchmarks)),
        "methods": "; ".join(dict.fromkeys(title(run["method"], run["kernel"]) for run in runs)),
        "runs": str(len(runs)) + (f", of which {diverged} diverged" if diverged else ""),
        "seeds": ", ".join(_first_few([str(seed) for seed in seeds])),
        "devices": ", ".join(sorted({run["device"] for run in runs})),
        "time": f"{number(sum(run['seconds'] / _together(run) for run in runs), 1)} seconds in all",
        "versions": ", ".join(sorted(versions)),
    }
    return f"<dl>{''.join(f'<dt>{name}</dt><dd>{escape(fact)}</dd>' for name, fact in facts.items())}</dl>"


def _running(runs: Sequence[Running], standing: Sequence[dict[str, Any]]) -> str:
    workers = "".join(_scroll("workers", standing_html(own), len(own["workers"])) for own in standing)
    return workers + _begun(runs, bool(standing))


def _begun(runs: Sequence[Running], going_on: bool) -> str:
    if not runs:
        return "" if going_on else '<p class="muted">No run is known to go on.</p>'
    head = "".join(f'<th scope="col">{name.replace("_", " ")}</th>' for name in Running._fields)
    body = "".join(f"<tr>{''.join(f'<td>{escape(str(cell))}</td>' for cell in run)}</tr>" for run in runs)
    table = f'<table class="grid"><caption>After the newest task of each</caption><thead><tr>{head}</tr></thead>'
    return _scroll("runs not finished", f"{table}<tbody>{body}</tbody></table>", len(runs))


def _first_few(texts: list[str], most: int = 20) -> list[str]:
    return texts if len(texts) <= most else [*texts[:most], f"and {len(texts) - most} more"]


def _together(run: Record) -> int:
    """How many runs shared the time: each tells the time of all. Trainings at once, and runs that share one."""
    counts = (run.get(name) for name in ("runs_at_once", "training_shared_by"))
    return math.prod(count for count in counts if type(count) is int and count > 0)


def _headline(groups: Sequence[Group]) -> str:
    if not groups:
        return '<p class="muted">No run came to its end.</p>'
    columns, rows = headline(groups)
    head = "".join(f'<th scope="col" class="number">{escape(str(column))}</th>' for column in columns)
    body = "".join(
        f'<tr><th scope="row">{escape(row.label)}</th>{"".join(map(_headline_cell, row.cells))}</tr>' for row in rows
    )
    table = (
        '<table class="grid"><caption>Average accuracy in percent</caption>'
        f'<thead><tr><th scope="col">method</th>{head}</tr></thead><tbody>{body}</tbody></table>'
    )
    note = f"Mean ± half the 95 % confidence interval over seeds (Student’s t). {significance.NOTE}"
    if any(cell and cell.published for row in rows for cell in row.cells):
        note += f" Paper: {SOURCE}, with the paper’s settings."
    return _scroll("headline table", table, len(rows)) + f'<p class="muted">{escape(note)}</p>'


def _headline_cell(cell: HeadlineCell | None) -> str:
    if cell is None:
        return '<td class="number">–</td>'
    value = f'<strong class="best" title="significantly best">{cell} ★</strong>' if cell.best else str(cell)
    size = f"<small>{_count(cell.summary.size, 'seed')}</small>"
    paper = f"<small>paper: {cell.published}</small>" if cell.published else ""
    return f'<td class="number">{value}{size}{paper}</td>'


def _results(groups: Sequence[Group]) -> str:
    names = [name.replace(" %", "&nbsp;%") for name in results_table.HEADER]
    head = "".join(f'<th scope="col"{_aligned(column)}>{name}</th>' for column, name in enumerate(names))
    body = "".join(
        f"<tr>{''.join(f'<td{_aligned(column)}>{escape(cell)}</td>' for column, cell in enumerate(row))}</tr>"
        for row in results_table.rows(groups)
    )
    table = f'<table class="grid"><caption>Results over seeds</caption><thead><tr>{head}</tr></thead>'
    note = f'<p class="muted">{escape(results_table.NOTE)}</p>'
    return note + _scroll("results table", f"{table}<tbody>{body}</tbody></table>", len(groups))


def _aligned(column: int) -> str:
    return "" if column < results_table.TEXT_COLUMNS else ' class="number"'


def _all_settings(groups: Sequence[Group]) -> str:
    note = '<p class="muted">Settings that differ between the runs of a table are marked ≠.</p>'
    own = (_settings(own) if len(own) <= _MANY_COLUMNS else _many_settings(own) for own in _by_benchmark(groups))
    return note + "".join(own)


def _settings(groups: Sequence[Group]) -> str:
    settings = [group.settings for group in groups]
    marked = set(differing(settings))
    head = "".join(f'<th scope="col">{escape(group.label)}</th>' for group in groups)
    body = "".join(
        f'<tr{" class=differs" if name in marked else ""}><th scope="row">{escape(show(name))}</th>'
        f"{''.join(f'<td>{escape(show(own.get(name)))}</td>' for own in settings)}</tr>"
        for name in _names(settings)
    )
    table = (
        f'<table class="grid"><caption>{escape(groups[0].benchmark)}</caption>'
        f'<thead><tr><th scope="col">setting</th>{head}</tr></thead><tbody>{body}</tbody></table>'
    )
    return _scroll(f"settings on {groups[0].benchmark}", table)


def _many_settings(groups: Sequence[Group]) -> str:
    """A row for each group, with the settings that differ; what is the same for all stands once, above."""
    settings = [group.settings for group in groups]
    marked = differing(settings)
    same = "; ".join(f"{show(name)} {show(settings[0][name])}" for name in _names(settings) if name not in marked)
    head = "".join(f'<th scope="col">≠ {escape(show(name))}</th>' for name in marked)
    body = "".join(
        f'<tr><th scope="row">{escape(group.label)}</th>'
        f"{''.join(f'<td>{escape(show(group.settings.get(name)))}</td>' for name in marked)}</tr>"
        for group in groups
    )
    table = (
        f'<table class="grid"><caption>{escape(groups[0].benchmark)}: {len(groups)} sets of settings</caption>'
        f'<thead><tr><th scope="col">runs</th>{head}</tr></thead><tbody>{body}</tbody></table>'
    )
    shared = f'<p class="muted">The same for all on {escape(groups[0].benchmark)}: {escape(same)}.</p>' if same else ""
    return shared + _scroll(f"settings on {groups[0].benchmark}", table, len(groups))


def _names(settings: Sequence[dict[str, Any]]) -> list[str]:
    return list(dict.fromkeys(name for own in settings for name in own))


def _commands(groups: Sequence[Group]) -> str:
    """Each command with the runs it made; the seeds of a group come from one command, or from several."""
    made: dict[str, dict[str, list[str]]] = {}
    for group in groups:
        for run in (*group.runs, *group.diverged):
            if run["command"]:
                label = f"{group.label} on {group.benchmark}"
                made.setdefault(run["command"], {}).setdefault(label, []).append(str(run["seed"]))
    if not made:
        return '<p class="muted">These runs were not made from the command line.</p>'
    blocks = []
    for command, runs in made.items():
        told = "; ".join(_first_few([f"{label}, seeds {', '.join(seeds)}" for label, seeds in runs.items()], 8))
        blocks.append(f'<p class="muted">{escape(told)}</p>')
        blocks.append(_scroll("command", f"<pre><code>{escape(command)}</code></pre>"))
    return "".join(blocks)


def _by_benchmark(groups: Sequence[Group]) -> list[list[Group]]:
    return [[g for g in groups if g.benchmark == name] for name in _unique(g.benchmark for g in groups)]


def _unique(texts: Iterable[Any]) -> list[str]:
    return [text for text in dict.fromkeys(texts) if text]


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
