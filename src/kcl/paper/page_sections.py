"""The generated parts of Markdown pages, between `<!-- NAME: begin -->` and `<!-- NAME: end -->`.

Everything outside the markers is prose and stays as it is. In REPRODUCIBILITY.md each table has the paper's numbers,
ours, their differences, verdicts and the command; docs/strong.md has the items' own tables.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from kcl.errors import KclError
from kcl.paper.cell import Cell, FinishedRuns, change_options
from kcl.paper.item import NOT_MEASURED, Item, forgetting_cell, forgetting_text, paper_text
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


HEADER = (
    "benchmark", "row", "paper %", "ours %", "difference", "accuracy", "just learned %",
    "paper's forgetting", "ours", "forgetting", "last test too", "so judged", "command",
)  # fmt: skip
FORGETTING = {"forgetting": "values of forgetting", "forgetting_with_last": "when the last test counts too"}
"""The two ways of counting it, and what the summary calls them."""


def _verdicts(cells: Sequence[Cell], runs: FinishedRuns) -> str:
    rows, accuracies, explained = [], [], 0
    forgettings: dict[str, list[Verdict]] = {field: [] for field in FORGETTING}
    for cell in cells:
        ours, paper = runs.summary(cell), cell.published
        difference = words = MISSING
        forgotten: list[str] = []
        if verdict := judge(ours, paper):
            reason = "" if verdict.agrees else _explanation(cell, runs)
            difference = f"{verdict.difference:+.1f} ({verdict.deviations:+.1f} sd, p {_probability(verdict.p)})"
            words, explained = f"{verdict}{reason}", explained + bool(reason)
            accuracies.append(verdict)
        for field, verdicts in forgettings.items():
            forgetting = runs.summary(cell, field)
            verdict = judge_forgetting(forgetting, paper)
            verdicts += [] if verdict is None else [verdict]
            forgotten += [forgetting_cell(forgetting), MISSING if verdict is None else str(verdict)]
        rows.append((
            cell.column, cell.row, paper_text(paper), spread(ours, 2) if ours else NOT_MEASURED, difference, words,
            spread(runs.summary(cell, "learning_accuracy"), 2), forgetting_text(paper), *forgotten,
            f"`{runs.command(cell)}`",
        ))  # fmt: skip
    counted = ((accuracies, "accuracies"), *((forgettings[field], what) for field, what in FORGETTING.items()))
    count = " ".join(_count(verdicts, what) for verdicts, what in counted)
    if explained:
        count += f" Accuracies marked as explained, {explained}, agree with settings nearer to those behind the number."
    return f"{markdown_table(HEADER, rows, None)}\n\n{count}"


def _probability(p: float) -> str:
    return "< 0.001" if p < 0.001 else f"{p:.3f}"


def _count(verdicts: Sequence[Verdict], what: str) -> str:
    reproduced = sum(verdict.reproduced for verdict in verdicts)
    wider = sum(verdict.agrees for verdict in verdicts) - reproduced
    more = f"; {wider} more only within {WIDER:.0f} standard deviations of single runs" if wider else ""
    return f"Reproduced: {reproduced} of {len(verdicts)} {what}{more}."


def _explanation(cell: Cell, runs: FinishedRuns) -> str:
    """Our result with settings nearer to those behind the printed number, if that agrees with it."""
    ours = runs.summary(cell.nearer) if cell.nearer else None
    verdict = judge(ours, cell.published)
    if cell.nearer is None or verdict is None or not verdict.agrees:
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
