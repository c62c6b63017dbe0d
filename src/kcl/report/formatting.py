"""Numbers over seeds as text, and tables in GitHub's Markdown."""

from __future__ import annotations

import html
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from kcl.report.summary import Summary

MISSING = "–"


def number(value: float, digits: int) -> str:
    """Fixed-point text, without the sign of a zero."""
    return f"{value:z.{digits}f}"


def spread(summary: Summary | None, digits: int) -> str:
    """Mean ± standard deviation."""
    if summary is None:
        return MISSING
    mean = number(summary.mean, digits)
    return mean if summary.deviation is None else f"{mean} ± {number(summary.deviation, digits)}"


def seed_count(finished: int, diverged: int) -> str:
    return f"{finished} (+{diverged} diverged)" if diverged else str(finished)


def interval(summary: Summary | None, digits: int = 2) -> str:
    """The 95 % confidence interval."""
    if summary is None or summary.half_width is None:
        return MISSING
    low, high = summary.mean - summary.half_width, summary.mean + summary.half_width
    return f"[{number(low, digits)}, {number(high, digits)}]"


def markdown_table(header: Sequence[str], rows: Iterable[Sequence[str]], numbers: slice | None = slice(1, None)) -> str:
    """The columns in `numbers` are aligned to the right."""
    rule = ["---"] * len(header)
    if numbers is not None:
        rule[numbers] = ["---:"] * len(rule[numbers])
    return "\n".join(f"| {' | '.join(line)} |" for line in (header, rule, *rows))


def aligned(rows: Sequence[Sequence[str]], first_number: int | None = None) -> list[str]:
    """Lines for a terminal, as wide as the widest cells; columns from `first_number` on are aligned to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    formats = [f"{{:<{width}}}" for width in widths]
    if first_number is not None:
        formats[first_number:] = [f"{{:>{width}}}" for width in widths[first_number:]]
    return ["  ".join(formats).format(*row).rstrip() for row in rows]


def text_table(rows: Sequence[Any], columns: Mapping[str, tuple[str, str]]) -> str:
    """For a terminal: by their heading, the field of a row that each column shows, and its format."""
    lines: list[Sequence[str]] = [list(columns)]
    for row in rows:
        values = [(getattr(row, field), form) for field, form in columns.values()]
        lines.append([MISSING if value is None else format(value, form) for value, form in values])
    return "\n".join(aligned(lines))


def plain(text: str) -> str:
    """Text that Markdown shows as it is: no table cell ends early, no markup is read."""
    text = html.escape(text, quote=False)
    for mark in "\\|`*_[]~$":
        text = text.replace(mark, f"\\{mark}")
    return text
