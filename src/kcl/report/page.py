"""One HTML page that holds a whole comparison: no network, no scripts, nothing beside the file."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path
from typing import Any

from kcl.report import figures, tables
from kcl.report.groups import Group, Record, differing, group_runs, show
from kcl.report.heatmap import heatmap, shading_range
from kcl.report.stylesheet import STYLESHEET
from kcl.results import write_whole


def write_page(records: Sequence[Record], path: str | Path, title: str) -> None:
    """Writes the page whole or not at all; the same records give the same bytes."""
    # A lone surrogate cannot be encoded; a question mark in its place beats no page.
    write_whole(path, page(records, title).encode(errors="replace"))


def page(records: Sequence[Record], title: str) -> str:
    """The page as text."""
    groups = group_runs(records)
    finished = [group for group in groups if group.runs]
    sections = [
        _section("What was run", _facts(groups)),
        _section("Results", _results(groups)),
        _section("Accuracy over time", _figure(records, finished)) if finished else "",
        _section("Accuracy matrices", _matrices(finished)) if finished else "",
        _section("Settings", _all_settings(groups)),
        _section("Commands", _commands(groups)),
    ]
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<title>{escape(title)}</title>
<style>{STYLESHEET}</style>
</head>
<body>
<header><h1>{escape(title)}</h1></header>
<main>
{"".join(sections)}</main>
<footer>Average accuracy is Eq. 12 and forgetting Eq. 13 of Derakhshani, Zhen, Shao and Snoek,
“Kernel continual learning”, ICML 2021. Tasks count from 0.</footer>
</body>
</html>
"""


def _section(heading: str, content: str) -> str:
    return f"<section>\n<h2>{heading}</h2>\n{content}\n</section>\n"


def _scroll(label: str, content: str) -> str:
    """Wide content scrolls by itself, by keyboard too, and leaves the page as wide as the screen."""
    return f'<div class="scroll" tabindex="0" role="region" aria-label="{escape(label)}">{content}</div>'


def _facts(groups: Sequence[Group]) -> str:
    runs = [run for group in groups for run in (*group.runs, *group.diverged)]
    diverged = sum(len(group.diverged) for group in groups)
    seeds = sorted({run["seed"] for run in runs})
    benchmarks = {f"{group.benchmark} ({_count(group.tasks, 'task')})" for group in groups}
    versions = {f"{name} {version}" for run in runs for name, version in run["versions"].items()}
    facts = {
        "benchmarks": ", ".join(sorted(benchmarks)),
        "methods": "; ".join(dict.fromkeys(group.label for group in groups)),
        "runs": str(len(runs)) + (f", of which {diverged} diverged" if diverged else ""),
        "seeds": ", ".join(map(str, seeds)),
        "devices": ", ".join(sorted({run["device"] for run in runs})),
        "time": f"{tables.number(sum(run['seconds'] for run in runs), 1)} seconds in all",
        "versions": ", ".join(sorted(versions)),
    }
    return f"<dl>{''.join(f'<dt>{name}</dt><dd>{escape(fact)}</dd>' for name, fact in facts.items())}</dl>"


def _results(groups: Sequence[Group]) -> str:
    names = [name.replace(" %", "&nbsp;%") for name in tables.HEADER]
    head = "".join(f'<th scope="col"{_aligned(column)}>{name}</th>' for column, name in enumerate(names))
    body = "".join(
        f"<tr>{''.join(f'<td{_aligned(column)}>{escape(cell)}</td>' for column, cell in enumerate(row))}</tr>"
        for row in tables.rows(groups)
    )
    table = f'<table class="grid"><caption>Results over seeds</caption><thead><tr>{head}</tr></thead>'
    note = f'<p class="muted">{escape(tables.NOTE)}</p>'
    return note + _scroll("results table", f"{table}<tbody>{body}</tbody></table>")


def _aligned(column: int) -> str:
    return "" if column < tables.TEXT_COLUMNS else ' class="number"'


def _figure(records: Sequence[Record], groups: Sequence[Group]) -> str:
    svg = figures.render(figures.overview(records), "svg").decode()
    svg = svg[svg.index("<svg") :]  # without the XML prologue, which HTML has no place for
    for tone, name in ((figures.INK, "ink"), (figures.LINE, "line"), (figures.PAPER, "paper")):
        svg = svg.replace(tone, f"var(--{name})")
    svg = re.sub("<svg ", f'<svg role="img" aria-label="{escape(_description(groups))}" ', svg, count=1)
    caption = (
        "Left: average accuracy over the tasks seen so far, after each task. Right: accuracy on each of the first "
        f"{figures.FIRST_TASKS} tasks from when it is learned to the end, one panel per method. Lines are means and "
        "bands one sample standard deviation to each side, over seeds."
    )
    return f"<figure>{_scroll('figure', svg)}<figcaption>{caption}</figcaption></figure>"


def _description(groups: Sequence[Group]) -> str:
    """What the figure shows, for who cannot see it."""
    ends = [
        f"{group.label} on {group.benchmark} ends at {tables.number(accuracy.mean, 1)} %"
        for group in groups
        if (accuracy := group.summary("average_accuracy"))
    ]
    return f"Line charts of accuracy over the tasks learned. Average accuracy: {'; '.join(ends)}."


def _matrices(groups: Sequence[Group]) -> str:
    parts = []
    for benchmark, own in _by_benchmark(groups).items():
        low, high = shading_range(own)
        parts.append(
            f'<h3>{escape(benchmark)}</h3><p class="muted">Accuracy in percent, mean over seeds; shaded from '
            f'{low:.0f} and below (plain) to {high:.0f} (full). A dot: not evaluated.</p><div class="matrices">'
            + "".join(_scroll(f"accuracy matrix of {group.label}", heatmap(group, low, high)) for group in own)
            + "</div>"
        )
    return "".join(parts)


def _all_settings(groups: Sequence[Group]) -> str:
    note = '<p class="muted">Settings that differ between the columns of a table are marked ≠.</p>'
    return note + "".join(_settings(own) for own in _by_benchmark(groups).values())


def _settings(groups: Sequence[Group]) -> str:
    settings = [group.settings for group in groups]
    marked = set(differing(settings))
    head = "".join(f'<th scope="col">{escape(group.label)}</th>' for group in groups)
    body = "".join(
        f'<tr{" class=differs" if name in marked else ""}><th scope="row">{escape(show(name))}</th>'
        f"{''.join(f'<td>{escape(show(own.get(name)))}</td>' for own in settings)}</tr>"
        for name in dict.fromkeys(name for own in settings for name in own)
    )
    table = (
        f'<table class="grid"><caption>{escape(groups[0].benchmark)}</caption>'
        f'<thead><tr><th scope="col">setting</th>{head}</tr></thead><tbody>{body}</tbody></table>'
    )
    return _scroll(f"settings on {groups[0].benchmark}", table)


def _commands(groups: Sequence[Group]) -> str:
    commands = _unique(run["command"] for group in groups for run in (*group.runs, *group.diverged))
    if not commands:
        return '<p class="muted">These runs were not made from the command line.</p>'
    blocks = "".join(_scroll("command", f"<pre><code>{escape(command)}</code></pre>") for command in commands)
    return f'<p class="muted">These commands made the runs.</p>{blocks}'


def _by_benchmark(groups: Sequence[Group]) -> dict[str, list[Group]]:
    return {name: [g for g in groups if g.benchmark == name] for name in _unique(g.benchmark for g in groups)}


def _unique(texts: Iterable[Any]) -> list[str]:
    return [text for text in dict.fromkeys(texts) if text]


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
