"""Cells as tables: ours with spread and confidence interval, paired differences, and the paper's values beside them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kcl.paper.cell import Cell, Published
from kcl.paper.item import Found
from kcl.report.groups import Group
from kcl.report.summary import Summary, summarise

HEADER = (
    "seeds",
    "accuracy %",
    "95 % interval",
    "forgetting",
    "beside {}",
    "paper: accuracy %",
    "forgetting",
    "ours − paper",
)
SPREAD = (
    "Mean ± sample standard deviation over seeds; 95 % confidence interval of the mean by Student's t; a diverged run "
    "is counted, not averaged."
)
NOTE = (
    "Mean ± sample standard deviation over seeds; 95 % confidence interval of the mean by Student's t. The column "
    "“beside” is the mean of the paired differences in accuracy to that row over the seeds both have, with its 95 % "
    "interval. A diverged run is counted, not averaged."
)
MISSING = "–"


def markdown(cells: Sequence[Cell], found: Found, reference: str, first: str) -> str:
    """One table per benchmark, its rows in order; `reference`: the row the others are compared with."""
    parts = []
    for column in dict.fromkeys(cell.column for cell in cells):
        own = [cell for cell in cells if cell.column == column]
        base = next((cell for cell in own if cell.row == reference), None)
        header = (first, *(name.format(reference) for name in HEADER))
        lines = [header, ("---", *["---:"] * len(HEADER)), *(_line(cell, base, found) for cell in own)]
        title = f"## {column}{', in miniature' if found.scale.note else ''}\n"
        parts.append("\n".join([title, *map(row, lines), ""]))
    return "\n".join([*parts, NOTE, ""])


def rows(cells: Sequence[Cell], found: Found, reference: str) -> list[dict[str, Any]]:
    """The same as numbers."""
    made = []
    for cell in cells:
        group, paper = found.group(cell), cell.published
        base = next((other for other in cells if (other.column, other.row) == (cell.column, reference)), None)
        accuracy = group.summary("average_accuracy") if group else None
        forgetting = group.summary("forgetting") if group else None
        beside = paired(cell, base, found)
        made.append(
            {
                "benchmark": cell.column,
                "row": cell.row,
                "seeds": len(group.runs) if group else 0,
                "diverged": len(group.diverged) if group else 0,
                **numbers("accuracy", accuracy),
                **numbers("forgetting", forgetting),
                **numbers(f"accuracy beside {reference}", beside),
                "paper accuracy": paper.accuracy if paper else None,
                "paper deviation": paper.deviation if paper else None,
                "paper forgetting": paper.forgetting if paper else None,
                "accuracy minus paper": accuracy.mean - paper.accuracy
                if accuracy and paper and not found.scale.note
                else None,
            }
        )
    return made


def _line(cell: Cell, base: Cell | None, found: Found) -> tuple[str, ...]:
    group, paper = found.group(cell), cell.published
    accuracy = group.summary("average_accuracy") if group else None
    forgetting = group.summary("forgetting") if group else None
    beside = None if base is None or base.row == cell.row else paired(cell, base, found)
    return (
        cell.row,
        seeds(group),
        spread(accuracy, 2),
        interval(accuracy),
        spread(forgetting, 3),
        MISSING if beside is None else f"{beside.mean:+.2f}{width(beside)}",
        printed(paper),
        MISSING if paper is None or paper.forgetting is None else f"{paper.forgetting:.2f}",
        f"{accuracy.mean - paper.accuracy:+.2f}" if accuracy and paper and not found.scale.note else MISSING,
    )


def paired(cell: Cell, base: Cell | None, found: Found) -> Summary | None:
    """Ours minus the reference, seed by seed."""
    if base is None:
        return None
    there = {run["seed"]: run["average_accuracy"] for run in found.runs(base)}
    pairs = [(run["average_accuracy"], there.get(run["seed"])) for run in found.runs(cell)]
    return summarise([mine - other for mine, other in pairs if mine is not None and other is not None])


def numbers(name: str, summary: Summary | None) -> dict[str, float | None]:
    mean, deviation, half = (summary.mean, summary.deviation, summary.half_width) if summary else (None, None, None)
    return {name: mean, f"{name}: deviation": deviation, f"{name}: half of the 95 % interval": half}


def seeds(group: Group | None) -> str:
    if group is None:
        return "0"
    return f"{len(group.runs)} (+{len(group.diverged)} diverged)" if group.diverged else str(len(group.runs))


def spread(summary: Summary | None, digits: int) -> str:
    if summary is None:
        return MISSING
    mean = f"{summary.mean:.{digits}f}"
    return mean if summary.deviation is None else f"{mean} ± {summary.deviation:.{digits}f}"


def interval(summary: Summary | None) -> str:
    if summary is None or summary.half_width is None:
        return MISSING
    return f"[{summary.mean - summary.half_width:.2f}, {summary.mean + summary.half_width:.2f}]"


def width(summary: Summary) -> str:
    return "" if summary.half_width is None else f" ± {summary.half_width:.2f}"


def printed(paper: Published | None) -> str:
    if paper is None:
        return MISSING
    return f"{paper.accuracy:.2f}" if paper.deviation is None else f"{paper.accuracy:.2f} ± {paper.deviation:.2f}"


def row(cells: Sequence[str]) -> str:
    """A line of a Markdown table."""
    return f"| {' | '.join(cells)} |"
