"""The generated parts of Markdown pages, between `<!-- NAME: begin -->` and `<!-- NAME: end -->`.

Everything outside the markers is prose and stays as it is. In REPRODUCIBILITY.md each table has the paper's numbers,
ours, their differences, verdicts and the command; docs/strong.md has the items' own tables.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from kcl.errors import KclError
from kcl.paper.cell import Cell, FinishedRuns, change_options
from kcl.paper.columns import COMMAND, JUST_LEARNED, NOT_MEASURED, PAPER_FORGETTING, Column, forgetting, paper_accuracy
from kcl.paper.item import Item
from kcl.report.formatting import MISSING, markdown_table, spread
from kcl.report.published import PaperResult
from kcl.report.summary import LEVEL, Summary, welch_p

PAPER_SEEDS = 5
"""Runs behind a printed mean, as the paper says of its main results."""
ROUNDING = 0.005
"""Forgetting is printed with two decimals."""
WIDER = 2.0
"""Standard deviations of single runs within which a mean that a test tells apart still agrees in a wider sense."""


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
    """An item's table for a page: with verdicts where the paper prints numbers, else a grid of ours; then the builds
    that its runs come from.
    """
    cells = item.cells()
    if not item.in_paper or not cells:
        table = item.markdown(runs)
    else:
        printed = [cell for cell in cells if cell.published]
        table = _verdicts(printed, runs) if printed else _grid(cells, runs)
    return "\n\n".join(filter(None, (table.rstrip(), item.builds(runs))))


class Verdict(NamedTuple):
    """Whether a printed mean was reproduced."""

    difference: float
    """Ours minus the paper's."""
    deviations: float
    """The same in standard deviations √(s² + s²) of the difference between a run of ours and one of the paper's."""
    p: float
    """The probability of such a difference by chance, by Welch's test of the two means."""

    @property
    def reproduced(self) -> bool:
        return self.p >= LEVEL

    @property
    def agrees(self) -> bool:
        """In the wider sense, or reproduced."""
        return self.reproduced or abs(self.deviations) <= WIDER

    @property
    def numbers(self) -> str:
        p = "< 0.001" if self.p < 0.001 else f"{self.p:.3f}"
        return f"{self.difference:+.1f} ({self.deviations:+.1f} sd, p {p})"

    def __str__(self) -> str:
        if self.reproduced:
            return "reproduced"
        return f"{'higher' if self.difference > 0 else 'lower'}{', within 2 sd' if self.agrees else ''}"


def judge(ours: Summary | None, paper: PaperResult | None) -> Verdict | None:
    """Of the accuracy. None if a number is missing, or if neither has a spread."""
    if ours is None or paper is None:
        return None
    return _verdict(ours, Summary(PAPER_SEEDS, paper.accuracy, paper.deviation, None), 0.0)


def judge_forgetting(ours: Summary | None, paper: PaperResult | None) -> Verdict | None:
    """The paper prints no spread of its forgetting: it is taken to be that of ours."""
    if ours is None or paper is None or paper.forgetting is None:
        return None
    return _verdict(ours, Summary(PAPER_SEEDS, paper.forgetting, ours.deviation, None), ROUNDING)


def _verdict(ours: Summary, paper: Summary, rounding: float) -> Verdict | None:
    deviation = math.hypot(ours.deviation or 0.0, paper.deviation or 0.0)
    difference = ours.mean - paper.mean
    return Verdict(difference, difference / deviation, welch_p(ours, paper, rounding)) if deviation else None


def _accuracy(cell: Cell, runs: FinishedRuns) -> Verdict | None:
    return judge(runs.summary(cell), cell.published)


def _forgetting(field: str) -> Callable[[Cell, FinishedRuns], Verdict | None]:
    return lambda cell, runs: judge_forgetting(runs.summary(cell, field), cell.published)


def _nearer(cell: Cell, runs: FinishedRuns) -> str:
    """Where ours disagree: our result with settings nearer to those behind the printed number, if that agrees."""
    verdict = _accuracy(cell, runs)
    if verdict is None or verdict.agrees or cell.nearer is None:
        return ""
    ours = runs.summary(cell.nearer)
    nearer = judge(ours, cell.published)
    if nearer is None or not nearer.agrees:
        return ""
    return f"; explained: {spread(ours, 2)} with `{' '.join(change_options(cell.nearer))}`"


def _with_reason(cell: Cell, runs: FinishedRuns) -> str | None:
    verdict = _accuracy(cell, runs)
    return None if verdict is None else f"{verdict}{_nearer(cell, runs)}"


JUDGED = (
    (_accuracy, "accuracies"),
    (_forgetting("forgetting"), "values of forgetting"),
    (_forgetting("forgetting_with_last"), "when the last test counts too"),
)
"""What is compared with the paper, forgetting counted in two ways, and what the summary calls it."""
VERDICTS = (
    Column("benchmark", lambda cell, _: cell.column),
    Column("row", lambda cell, _: cell.row),
    Column("paper %", lambda cell, _: cell.published, paper_accuracy),
    Column("ours %", lambda cell, runs: spread(ours, 2) if (ours := runs.summary(cell)) else NOT_MEASURED),
    Column("difference", _accuracy, lambda verdict: verdict.numbers),
    Column("accuracy", _with_reason),
    JUST_LEARNED,
    replace(PAPER_FORGETTING, heading="paper's forgetting"),
    forgetting("ours", "forgetting"),
    Column("forgetting", _forgetting("forgetting")),
    forgetting("last test too", "forgetting_with_last"),
    Column("so judged", _forgetting("forgetting_with_last")),
    COMMAND,
)


def _verdicts(cells: Sequence[Cell], runs: FinishedRuns) -> str:
    rows = [[column.text(cell, runs) for column in VERDICTS] for cell in cells]
    counts = [_count([judged(cell, runs) for cell in cells], what) for judged, what in JUDGED]
    if explained := sum(bool(_nearer(cell, runs)) for cell in cells):
        counts.append(
            f"Accuracies marked as explained, {explained}, agree with settings nearer to those behind the number."
        )
    return f"{markdown_table([column.heading for column in VERDICTS], rows, None)}\n\n{' '.join(counts)}"


def _count(verdicts: Sequence[Verdict | None], what: str) -> str:
    judged = [verdict for verdict in verdicts if verdict]
    reproduced = sum(verdict.reproduced for verdict in judged)
    wider = sum(verdict.agrees for verdict in judged) - reproduced
    more = f"; {wider} more only within {WIDER:.0f} standard deviations of single runs" if wider else ""
    return f"Reproduced: {reproduced} of {len(judged)} {what}{more}."


def _grid(cells: Sequence[Cell], runs: FinishedRuns) -> str:
    """One row per setting, one column per benchmark: average accuracy after the last task."""
    columns = list(dict.fromkeys(cell.column for cell in cells))
    rows: dict[str, dict[str, str]] = {}
    for cell in cells:
        ours = runs.summary(cell)
        row = rows.setdefault(cell.row, {"": cell.row} | dict.fromkeys(columns, MISSING))
        row[cell.column] = spread(ours, 2) if ours else NOT_MEASURED
    return markdown_table(["", *columns], [list(row.values()) for row in rows.values()], None)
