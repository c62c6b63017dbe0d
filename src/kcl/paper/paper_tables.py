"""Tables of cells: a table is its cells and its columns, in Markdown for readers and as numbers for a CSV file."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from kcl.paper.cell import Cell
from kcl.paper.finished_runs import FinishedRuns
from kcl.paper.item import Item
from kcl.report.formatting import MISSING, interval, markdown_table, seed_count, spread
from kcl.report.published import PaperResult
from kcl.report.summary import Summary

NOT_MEASURED = "not measured yet"
SPREAD = (
    "Mean ± sample standard deviation over seeds; 95 % confidence interval of the mean by Student's t; diverged runs "
    "are counted, not averaged."
)


class TableColumn(NamedTuple):
    heading: str
    text: Callable[[Cell, FinishedRuns], str]
    numbers: Callable[[Cell, FinishedRuns], dict[str, Any]]


def cell_table(
    heading: str,
    columns: Sequence[TableColumn],
    cells: Iterable[Cell],
    runs: FinishedRuns,
    further: Iterable[Sequence[str]] = (),
) -> str:
    """One row per cell, and further rows that are no cells. All columns but the command are numbers."""
    rows = [(cell.row, *(column.text(cell, runs) for column in columns)) for cell in cells]
    numbers = slice(1, -1 if columns[-1] is COMMAND else None)
    return markdown_table((heading, *(column.heading for column in columns)), [*rows, *further], numbers)


def cell_numbers(columns: Sequence[TableColumn], cells: Iterable[Cell], runs: FinishedRuns) -> list[dict[str, Any]]:
    """The same for a CSV file."""
    rows = []
    for cell in cells:
        row: dict[str, Any] = {"benchmark": cell.column, "row": cell.row}
        for column in columns:
            row |= column.numbers(cell, runs)
        rows.append(row)
    return rows


def _seeds(cell: Cell, runs: FinishedRuns) -> dict[str, Any]:
    group = runs.group(cell)
    return {"seeds": len(group.runs) if group else 0, "diverged": len(group.diverged) if group else 0}


def _accuracy(cell: Cell, runs: FinishedRuns) -> str:
    if runs.group(cell) is None:
        return NOT_MEASURED if runs.scale.specs(cell, runs.seeds) else "not in the miniature"
    return spread(runs.summary(cell), 2)


def _summary_numbers(name: str, summary: Summary | None) -> dict[str, Any]:
    mean, deviation, half = (summary.mean, summary.deviation, summary.half_width) if summary else (None, None, None)
    return {name: mean, f"{name}: deviation": deviation, f"{name}: half of the 95 % interval": half}


def _measure(heading: str, name: str, field: str, digits: int) -> TableColumn:
    return TableColumn(
        heading,
        lambda cell, runs: spread(runs.summary(cell, field), digits),
        lambda cell, runs: _summary_numbers(name, runs.summary(cell, field)),
    )


MEASURED = (
    TableColumn("seeds", lambda cell, runs: seed_count(runs.group(cell)), _seeds),
    _measure("accuracy %", "accuracy", "average_accuracy", 2)._replace(text=_accuracy),
    TableColumn("95 % interval", lambda cell, runs: interval(runs.summary(cell)), lambda _, __: {}),
    _measure("forgetting", "forgetting", "forgetting", 3),
)
JUST_LEARNED = _measure("just learned %", "just learned", "learning_accuracy", 2)
PAPER = (
    TableColumn(
        "paper: accuracy %",
        lambda cell, _: paper_text(cell.published),
        lambda cell, _: {
            "paper accuracy": cell.published.accuracy if cell.published else None,
            "paper deviation": cell.published.deviation if cell.published else None,
        },
    ),
    TableColumn(
        "forgetting",
        lambda cell, _: forgetting_text(cell.published),
        lambda cell, _: {"paper forgetting": cell.published.forgetting if cell.published else None},
    ),
    TableColumn(
        "ours − paper",
        lambda cell, runs: MISSING if (gap := _minus_paper(cell, runs)) is None else f"{gap:+.2f}",
        lambda cell, runs: {"accuracy minus paper": _minus_paper(cell, runs)},
    ),
)
COMMAND = TableColumn(
    "command",
    lambda cell, runs: MISSING if runs.miniature else f"`{runs.command(cell)}`",
    lambda cell, runs: {"command": None if runs.miniature else runs.command(cell)},
)


def paired_difference(name: str, reference: Callable[[Cell], Cell | None]) -> TableColumn:
    """The mean of the paired differences in accuracy to a reference, with its 95 % interval."""

    def difference(cell: Cell, runs: FinishedRuns) -> Summary | None:
        other = reference(cell)
        return runs.paired_difference(cell, other) if other else None

    def text(cell: Cell, runs: FinishedRuns) -> str:
        other, summary = reference(cell), difference(cell, runs)
        if other is None or other.row == cell.row or summary is None:
            return MISSING
        return f"{summary.mean:+.2f}" + ("" if summary.half_width is None else f" ± {summary.half_width:.2f}")

    return TableColumn(
        f"vs. {name}", text, lambda cell, runs: _summary_numbers(f"accuracy vs. {name}", difference(cell, runs))
    )


def paper_text(paper: PaperResult | None) -> str:
    return MISSING if paper is None else spread(Summary(0, paper.accuracy, paper.deviation, None), 2)


def forgetting_text(paper: PaperResult | None) -> str:
    return MISSING if paper is None or paper.forgetting is None else f"{paper.forgetting:.2f}"


def _minus_paper(cell: Cell, runs: FinishedRuns) -> float | None:
    accuracy = None if runs.miniature else runs.summary(cell)
    return accuracy.mean - cell.published.accuracy if accuracy and cell.published else None


class CellTable(Item):
    """One table per benchmark, whose rows are compared with a reference row and with the paper."""

    reference: str
    row_heading: str

    def columns(self) -> list[TableColumn]:
        references = {cell.column: cell for cell in self.cells() if cell.row == self.reference}
        return [*MEASURED, paired_difference(self.reference, lambda cell: references.get(cell.column)), *PAPER]

    def markdown(self, runs: FinishedRuns) -> str:
        cells, parts = self.cells(), []
        for title in dict.fromkeys(cell.column for cell in cells):
            rows = [cell for cell in cells if cell.column == title]
            table = cell_table(self.row_heading, self.columns(), rows, runs)
            parts.append(f"## {title}{', in miniature' if runs.miniature else ''}\n\n{table}\n")
        note = (
            f"{SPREAD} The column “vs. {self.reference}” is the mean of the paired differences in accuracy to that "
            "row, over the seeds that both have, with its 95 % interval."
        )
        return "\n".join([*parts, note, ""])

    def rows(self, runs: FinishedRuns) -> list[dict[str, Any]]:
        return cell_numbers(self.columns(), self.cells(), runs)
