"""One HTML page that holds a whole comparison: no network, no other files."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape
from pathlib import Path
from string import Template
from typing import Any

from kcl.core.files import write_whole
from kcl.report import results_table
from kcl.report.charts import charts, page_file, policy, scripts
from kcl.report.formatting import MISSING, interval, number
from kcl.report.groups import Record, SeedGroup, differing, group_runs, show, title
from kcl.report.headline import HeadlineCell, headline
from kcl.report.page_parts import Html, facts, muted, scroll, section, table
from kcl.report.page_samples import SavedSamples, samples_html
from kcl.report.published import SOURCE
from kcl.report.summary import SIGNIFICANCE
from kcl.report.unfinished import Running, unfinished_html

_MANY_GROUPS = 8  # side by side; more are listed one below the other, with only the settings that differ


def write_page(records: Sequence[Record], path: str | Path, heading: str, samples: Sequence[SavedSamples] = ()) -> None:
    """Write the page, whole or not at all; the same records give the same bytes."""
    # A lone surrogate cannot be encoded; a question mark in its place is better than no page.
    write_whole(path, page(records, heading, samples=samples).encode(errors="replace"))


def page(
    records: Sequence[Record],
    heading: str,
    version: str | None = None,
    unfinished: Sequence[Running] = (),
    samples: Sequence[SavedSamples] = (),
    statuses: Sequence[dict[str, Any]] = (),
) -> str:
    """The page as text. With a version it is served live: it asks whether there is a newer one."""
    live = version is not None
    groups = group_runs(records) if records or not live else []
    finished = [group for group in groups if group.runs]
    seen = samples_html(finished, samples)
    running = unfinished_html(unfinished, statuses) or muted("There are no unfinished runs.")
    confused = "".join(map(_confusion, finished))
    sections = [
        section("facts", "What was run", _facts(groups)),
        section("running", "Not finished yet", running) if live else "",
        section("headline", "Average accuracy", _headline(finished)),
        charts(groups) if finished or live else "",
        section("seen", "What the model sees", seen) if seen else "",
        section("results", "All results", _results(groups)),
        section("confusion", "Tasks taken for each other", confused) if confused else "",
        section("settings", "Settings", _all_settings(groups)),
        section("commands", "Commands", _commands(groups)),
    ]
    return Template(page_file("page.html")).substitute(
        heading=escape(heading),
        policy=policy(live),
        # Without an icon of its own, the server would be asked for one.
        icon='<link rel="icon" href="data:,">\n' if live else "",
        stylesheet=page_file("page.css"),
        version=f' data-version="{escape(version)}"' if version is not None else "",
        live='<p class="muted" id="live" role="status">live</p>' if live else "",
        sections="".join(sections),
        scripts=scripts() if finished or live else "",
    )


def _facts(groups: Sequence[SeedGroup]) -> str:
    if not groups:
        return muted("No run is finished yet.")
    runs = [run for group in groups for run in group.all_runs]
    diverged = sum(len(group.diverged) for group in groups)
    seconds = sum(run["seconds"] / _shared_by(run) for run in runs)
    return facts(
        {
            "benchmarks": ", ".join(sorted({f"{group.benchmark} ({_count(group.tasks, 'task')})" for group in groups})),
            "methods": "; ".join(dict.fromkeys(title(group.method, group.kernel) for group in groups)),
            "runs": str(len(runs)) + (f", of which {diverged} diverged" if diverged else ""),
            "seeds": ", ".join(_first_few([str(seed) for seed in sorted({run["seed"] for run in runs})])),
            "devices": ", ".join(sorted({run["device"] for run in runs})),
            "time": f"{number(seconds, 1)} seconds in all",
            "versions": ", ".join(sorted({f"{name} {v}" for run in runs for name, v in run["versions"].items()})),
        }
    )


def _first_few(texts: list[str], most: int = 20) -> list[str]:
    return texts if len(texts) <= most else [*texts[:most], f"and {len(texts) - most} more"]


def _shared_by(run: Record) -> int:
    """How many runs shared the recorded time: trainings done together, times runs that share a training."""
    counts = (run.get(name) for name in ("runs_at_once", "training_shared_by"))
    return math.prod(count for count in counts if type(count) is int and count > 0)


def _headline(groups: Sequence[SeedGroup]) -> str:
    if not groups:
        return muted("No run has finished.")
    columns, rows = headline(groups)
    caption = "Average accuracy in percent, mean ± standard deviation"
    body = [[label, *map(_headline_cell, cells)] for label, cells in rows.items()]
    note = f"In brackets: the 95 % confidence interval of the mean over seeds (Student’s t). {SIGNIFICANCE}"
    if any(cell and cell.published for cells in rows.values() for cell in cells):
        note += f" Paper: {SOURCE}, with the paper’s settings."
    return table(caption, ["method", *columns], body, first_number=1, row_heads=True) + muted(note)


def _headline_cell(cell: HeadlineCell | None) -> str:
    if cell is None:
        return MISSING
    value = f'<strong class="best" title="significantly best">{cell} ★</strong>' if cell.best else str(cell)
    paper = f"<small>paper: {cell.published}</small>" if cell.published else ""
    bounds = "" if cell.summary.half_width is None else f"<small>{interval(cell.summary)}</small>"
    return Html(f"{value}{bounds}<small>{_count(cell.summary.size, 'seed')}</small>{paper}")


def _results(groups: Sequence[SeedGroup]) -> str:
    header = [name.replace(" %", "\N{NO-BREAK SPACE}%") for name in results_table.header(groups)]
    caption = "Results over seeds, mean ± standard deviation"
    body = results_table.rows(groups)
    return muted(results_table.NOTE) + table(caption, header, body, first_number=results_table.TEXT_COLUMNS)


def _confusion(group: SeedGroup) -> str:
    """Of every task, in percent: for samples of which tasks its test samples were taken."""
    shares = group.task_confusion()
    if shares is None:
        return ""
    numbers = [f"task {number}" for number in range(1, len(shares) + 1)]
    body = [[name, *(number(100.0 * share, 0) for share in row)] for name, row in zip(numbers, shares, strict=True)]
    caption = f"{group.label} on {group.benchmark}: % of a task’s test samples (row) by the task of the answer (column)"
    return table(caption, ["", *numbers], body, first_number=1, row_heads=True)


def _all_settings(groups: Sequence[SeedGroup]) -> str:
    parts = [muted("Settings that differ between the runs of a table are marked ≠.")]
    for benchmark in dict.fromkeys(group.benchmark for group in groups):
        members = [group for group in groups if group.benchmark == benchmark]
        parts.append(_settings(benchmark, members))
    return "".join(parts)


def _settings(benchmark: str, groups: Sequence[SeedGroup]) -> str:
    """A column for each group. Many have a row each, with the settings that differ; those that do not stand above."""
    settings = [group.settings for group in groups]
    names = list(dict.fromkeys(name for values in settings for name in values))
    differ = differing(settings)
    if len(groups) <= _MANY_GROUPS:
        body = [[show(name), *(show(values.get(name)) for values in settings)] for name in names]
        header = ["setting", *(group.label for group in groups)]
        return table(f"Settings on {benchmark}", header, body, row_heads=True, marked={show(name) for name in differ})
    same = "; ".join(f"{show(name)} {show(settings[0][name])}" for name in names if name not in differ)
    body = [[group.label, *(show(group.settings.get(name)) for name in differ)] for group in groups]
    header = ["runs", *(f"≠ {show(name)}" for name in differ)]
    shared = muted(f"The same for all on {benchmark}: {same}.") if same else ""
    return shared + table(f"{len(groups)} sets of settings on {benchmark}", header, body, row_heads=True)


def _commands(groups: Sequence[SeedGroup]) -> str:
    """Each command with its runs; the seeds of a group may come from several commands."""
    runs_of: dict[str, dict[str, list[str]]] = {}
    for group in groups:
        for run in group.all_runs:
            if run["command"]:
                label = f"{group.label} on {group.benchmark}"
                runs_of.setdefault(run["command"], {}).setdefault(label, []).append(str(run["seed"]))
    if not runs_of:
        return muted("These runs were not started from the command line.")
    parts = []
    for command, runs in runs_of.items():
        labels = _first_few([f"{label}, seeds {', '.join(seeds)}" for label, seeds in runs.items()], 8)
        parts.append(muted("; ".join(labels)) + scroll("command", f"<pre><code>{escape(command)}</code></pre>"))
    return "".join(parts)


def _count(amount: int, noun: str) -> str:
    return f"{amount} {noun}" if amount == 1 else f"{amount} {noun}s"
