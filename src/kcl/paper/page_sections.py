"""The generated parts of Markdown pages, between `<!-- NAME: begin -->` and `<!-- NAME: end -->`.

Everything outside the markers is prose and stays as it is. In REPRODUCIBILITY.md each table has the paper's number,
ours, their difference, a verdict and the command; docs/strong.md has the items' own tables.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from kcl.errors import KclError
from kcl.paper.cell import Cell, FinishedRuns, change_options
from kcl.paper.item import NOT_MEASURED, Item, forgetting_text, paper_text
from kcl.report.formatting import MISSING, markdown_table, spread
from kcl.report.published import PaperResult
from kcl.report.summary import Summary

LIMIT = 2.0
"""Standard deviations within which a number counts as reproduced."""


def replace_sections(page: str, items: Mapping[str, Item], runs: FinishedRuns) -> str:
    """The page with new tables between the markers of these items."""
    for name in section_names(page):
        if name in items:
            before, begin, rest = page.partition(f"<!-- {name}: begin -->")
            _, end, after = rest.partition(f"<!-- {name}: end -->")
            page = f"{before}{begin}\n\n{section(items[name], runs).strip()}\n\n{end}{after}"
    return page


def section_names(page: str) -> list[str]:
    """The names in a page's markers; each must begin and end once, in this order."""
    markers = re.findall(r"<!-- ([\w-]+): (begin|end) -->", page)
    names = list(dict.fromkeys(name for name, _ in markers))
    for name in names:
        if [kind for other, kind in markers if other == name] != ["begin", "end"]:
            raise KclError(f"the page must have <!-- {name}: begin --> once and, after it, <!-- {name}: end --> once")
    return names


def section(item: Item, runs: FinishedRuns) -> str:
    """An item's table for a page: with verdicts where the paper prints numbers, else a grid of ours."""
    cells = item.cells()
    if not item.in_paper or not cells:
        return item.markdown(runs)
    printed = [cell for cell in cells if cell.published]
    return _verdicts(printed, runs) if printed else _grid(cells, runs)


class Verdict(NamedTuple):
    """Whether a printed accuracy was reproduced."""

    difference: float
    """Ours minus the paper's, in points."""
    deviations: float
    """The same in standard deviations √(s² + s²) of the difference between a run of ours and one of the paper's."""

    @property
    def reproduced(self) -> bool:
        return abs(self.deviations) <= LIMIT

    def __str__(self) -> str:
        if self.reproduced:
            return "reproduced"
        return "ours is higher" if self.difference > 0 else "ours is lower"


def judge(ours: Summary | None, paper: PaperResult | None) -> Verdict | None:
    """None if a number is missing, or if neither has a spread."""
    if ours is None or paper is None:
        return None
    deviation = math.hypot(ours.deviation or 0.0, paper.deviation or 0.0)
    difference = ours.mean - paper.accuracy
    return Verdict(difference, difference / deviation) if deviation else None


def _verdicts(cells: Sequence[Cell], runs: FinishedRuns) -> str:
    rows = []
    judged = reproduced = explained = 0
    for cell in cells:
        ours, forgetting, paper = runs.summary(cell), runs.summary(cell, "forgetting"), cell.published
        difference = words = MISSING
        if verdict := judge(ours, paper):
            reason = "" if verdict.reproduced else _explanation(cell, runs)
            difference, words = f"{verdict.difference:+.1f} ({verdict.deviations:+.1f} sd)", f"{verdict}{reason}"
            judged, reproduced, explained = judged + 1, reproduced + verdict.reproduced, explained + bool(reason)
        measured = spread(ours, 2) if ours else NOT_MEASURED
        forgotten = f"{forgetting.mean:.3f}" if forgetting else MISSING
        numbers = (paper_text(paper), measured, difference, words, forgetting_text(paper), forgotten)
        rows.append((cell.column, cell.row, *numbers, f"`{runs.command(cell)}`"))
    header = ("benchmark", "row", "paper %", "ours %", "difference", "verdict", "paper's forgetting", "ours", "command")
    count = f"{reproduced} of {judged} accuracies lie within {LIMIT:.0f} standard deviations of the difference."
    if explained:
        count += f" {explained} more, marked as explained, do with settings nearer to those behind the printed number."
    return f"{markdown_table(header, rows, None)}\n\n{count}"


def _explanation(cell: Cell, runs: FinishedRuns) -> str:
    """Our result with settings nearer to those behind the printed number, if it is the printed number."""
    ours = runs.summary(cell.nearer) if cell.nearer else None
    verdict = judge(ours, cell.published)
    if cell.nearer is None or verdict is None or not verdict.reproduced:
        return ""
    return f"; explained: {spread(ours, 2)} with `{' '.join(change_options(cell.nearer))}`"


def _grid(cells: Sequence[Cell], runs: FinishedRuns) -> str:
    """One row per setting, one column per benchmark: average accuracy after the last task."""
    columns = list(dict.fromkeys(cell.column for cell in cells))
    rows: dict[str, dict[str, str]] = {}
    for cell in cells:
        ours = runs.summary(cell)
        row = rows.setdefault(cell.row, {"": cell.row} | dict.fromkeys(columns, MISSING))
        row[cell.column] = spread(ours, 2) if ours else NOT_MEASURED
    return markdown_table(["", *columns], [list(row.values()) for row in rows.values()], None)
