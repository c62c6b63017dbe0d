"""How far back averaged weights reach, and the effect on accuracy right after a task and at the end."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from kcl.methods.recipes import published_settings
from kcl.methods.strong_recipe import strong_settings
from kcl.paper.cell import Cell
from kcl.paper.finished_runs import FinishedRuns
from kcl.paper.paper_figures import MEASURES, panels, sweep
from kcl.paper.paper_tables import COMMAND, SPREAD, cell_table
from kcl.paper.strong_results import LAST, LEARNED, STRONG_MEASURED, StrongItem
from kcl.report.published import BENCHMARK_TITLES, CIFAR100, MINIIMAGENET

if TYPE_CHECKING:
    from matplotlib.figure import Figure

RAMPS = {CIFAR100: (1.0, 2.0, 3.0, 5.0, 9.0), MINIIMAGENET: (1.0, 1.25, 2.0, 3.0, 5.0, 9.0)}
RAMPS_WITH_METRIC = {CIFAR100: (2.0,), MINIIMAGENET: (1.0, 1.25, 2.0)}
"""With the metric of all coresets, which was added later: the recipe's, and on Split miniImageNet its neighbours."""


class HorizonTable(StrongItem):
    name = "strong-reach"
    title = "How far back averaged weights reach"
    note = (
        "The strong recipe with other values of `average_ramp`, r: weights are averaged over about one in r of all "
        "updates so far; with r = 1 over all of them equally. It acts only at test: rows of a benchmark that are "
        "requested together share one training and are tested separately. Without the metric of all coresets, which "
        "was added later, unless the row says so."
    )

    def cells(self) -> list[Cell]:
        return [cell for benchmark in RAMPS for cell in _rows(benchmark)]

    def markdown(self, runs: FinishedRuns) -> str:
        parts = []
        for benchmark in RAMPS:
            recipe = {"average_ramp": strong_settings(benchmark, "kcl").average_ramp}
            cells = [
                replace(cell, row=f"**{cell.row}** (the recipe)") if cell.changes == recipe else cell
                for cell in _rows(benchmark)
            ]
            title = f"{BENCHMARK_TITLES[benchmark]}{', in miniature' if runs.miniature else ''}"
            parts.append(cell_table(title, (*STRONG_MEASURED, COMMAND), cells, runs) + "\n")
        return "\n".join([*parts, f"{SPREAD} {LEARNED}", ""])

    def figure(self, runs: FinishedRuns) -> Figure:
        def lines(benchmark: str) -> dict[str, list[tuple[float, Cell]]]:
            cells = {"without the metric": _without_metric(benchmark), "with it": _with_metric(benchmark)}
            return {name: [(cell.changes["average_ramp"], cell) for cell in line] for name, line in cells.items()}

        contents = [
            (
                BENCHMARK_TITLES[benchmark],
                partial(sweep, lines=lines(benchmark), runs=runs, xlabel="average_ramp", measure=measure),
            )
            for benchmark in RAMPS
            for measure in MEASURES
        ]
        return panels(contents, runs, columns=len(MEASURES))


def _rows(benchmark: str) -> list[Cell]:
    paper = published_settings(benchmark, "kcl")
    last = {"weight_average": paper.weight_average, "average_ramp": paper.average_ramp, "shared_metric": 0.0}
    return [*_without_metric(benchmark), _cell(LAST, benchmark, last), *_with_metric(benchmark)]


def _without_metric(benchmark: str) -> list[Cell]:
    return [
        _cell(f"r = {ramp:g}", benchmark, {"average_ramp": ramp, "shared_metric": 0.0}) for ramp in RAMPS[benchmark]
    ]


def _with_metric(benchmark: str) -> list[Cell]:
    ramps = sorted({*RAMPS_WITH_METRIC[benchmark], strong_settings(benchmark, "kcl").average_ramp})
    return [_cell(f"r = {ramp:g}, with the metric", benchmark, {"average_ramp": ramp}) for ramp in ramps]


def _cell(row: str, benchmark: str, changes: dict[str, Any]) -> Cell:
    return Cell(row, benchmark, changes=changes, recipe="strong")
