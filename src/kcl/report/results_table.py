"""The results table: mean ± sample standard deviation over seeds, as plain text and as Markdown."""

from __future__ import annotations

import html
from collections.abc import Sequence

from kcl.report.groups import Group, Record, group_runs
from kcl.report.summary import Summary

HEADER = (
    "benchmark",
    "method",
    "seeds",
    "average accuracy %",
    "95 % interval",
    "forgetting",
    "learning accuracy %",
    "kept",
    "seconds",
)
NOTE = (
    "Mean ± sample standard deviation over seeds; 95 % confidence interval of the mean average accuracy\n"
    "by Student's t. Diverged runs are counted, not averaged. Kept: samples, and the room of all that is kept."
)
TEXT_COLUMNS = 2  # benchmark and method; everything after them is a number and set to the right
_MISSING = "–"


def rows(groups: Sequence[Group]) -> list[tuple[str, ...]]:
    """One row of cells per group, under `HEADER`."""
    return [
        (
            group.benchmark,
            group.label,
            _seeds(group),
            _spread(accuracy := group.summary("average_accuracy"), 2),
            _interval(accuracy, 2),
            _spread(group.summary("forgetting"), 3),
            _spread(group.summary("learning_accuracy"), 2),
            _kept(group),
            _spread(group.summary("seconds"), 1),
        )
        for group in groups
    ]


def text(records: Sequence[Record]) -> str:
    """The table for a terminal, columns aligned, with the note that explains it."""
    cells = rows(group_runs(records))
    upper, lower = zip(*(_two_lines(name) for name in HEADER), strict=True)
    widths = [max(map(len, column)) for column in zip(upper, lower, *cells, strict=True)]

    def aligned(line: tuple[str, ...]) -> str:
        sides = ["<"] * TEXT_COLUMNS + [">"] * (len(HEADER) - TEXT_COLUMNS)
        return "  ".join(f"{c:{s}{w}}" for c, s, w in zip(line, sides, widths, strict=True)).rstrip()

    rule = "  ".join("-" * width for width in widths)
    return "\n".join([aligned(upper), aligned(lower), rule, *map(aligned, cells), "", NOTE]) + "\n"


def markdown(records: Sequence[Record]) -> str:
    """The table in GitHub's Markdown, with the note that explains it."""
    rule = tuple("---" if column < TEXT_COLUMNS else "---:" for column in range(len(HEADER)))
    cells = [(*map(plain, row[:TEXT_COLUMNS]), *row[TEXT_COLUMNS:]) for row in rows(group_runs(records))]
    return "\n".join([*(f"| {' | '.join(line)} |" for line in [HEADER, rule, *cells]), "", NOTE]) + "\n"


def number(value: float, digits: int) -> str:
    """Fixed-point text, without the sign of a zero."""
    shown = f"{value:.{digits}f}"
    return shown.removeprefix("-") if float(shown) == 0 else shown


def _two_lines(name: str) -> tuple[str, str]:
    """Long column names would make the table wider than its numbers do."""
    first, _, rest = name.partition(" ")
    return (first, rest) if len(name) > 14 else ("", name)


def _seeds(group: Group) -> str:
    return f"{len(group.runs)} (+{len(group.diverged)} diverged)" if group.diverged else str(len(group.runs))


def _kept(group: Group) -> str:
    """Samples kept at the end and the room everything kept takes, as the runs say; means where they differ."""
    uses = [run["memory"] for run in group.runs]
    if not uses or any(type(use.get(name)) is not int for use in uses for name in ("samples", "bytes")):
        return _MISSING
    samples, size = (sum(use[name] for use in uses) / len(uses) for name in ("samples", "bytes"))
    room = f"{number(size / 1e6, 2)} MB" if size >= 1e6 else f"{number(size / 1e3, 1)} kB"
    return f"{number(samples, 0)} ({room})"


def _spread(summary: Summary | None, digits: int) -> str:
    if summary is None:
        return _MISSING
    mean = number(summary.mean, digits)
    return mean if summary.deviation is None else f"{mean} ± {number(summary.deviation, digits)}"


def _interval(summary: Summary | None, digits: int) -> str:
    if summary is None or summary.half_width is None:
        return _MISSING
    low, high = summary.mean - summary.half_width, summary.mean + summary.half_width
    return f"[{number(low, digits)}, {number(high, digits)}]"


def plain(cell: str) -> str:
    """Names as plain text: no cell ends early, no markup is read."""
    plain = html.escape(cell, quote=False)
    for mark in "\\|`*_[]~$":
        plain = plain.replace(mark, f"\\{mark}")
    return plain
