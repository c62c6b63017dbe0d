"""How far back averaged weights reach: what it does to what is just learned, and to what is left in the end."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kcl.methods.recipes import published_settings
from kcl.methods.strong_recipe import strong_settings
from kcl.paper import paper_tables
from kcl.paper.cell import CIFAR100, MINIIMAGENET, TITLES, Cell
from kcl.paper.item import Found, Item
from kcl.paper.paper_figures import MEASURES, panels, sweep
from kcl.paper.strong_results import LAST, LEARNED, MEASURED, StrongResults, asked, measured

if TYPE_CHECKING:
    from matplotlib.figure import Figure

BENCHMARKS = (CIFAR100, MINIIMAGENET)
RAMPS = (1.0, 2.0, 3.0, 5.0, 9.0)
FURTHER = {MINIIMAGENET: (1.25,)}
"""What else was measured."""
MEASURED_WITH = {CIFAR100: (2.0,), MINIIMAGENET: (1.0, 1.25, 2.0)}
"""With the metric of all coresets, which came later: the recipe's, and on Split miniImageNet those beside it."""


class Reach(Item):
    name = "strong-reach"
    place = "Past the paper (docs/strong.md)"
    title = "How far back averaged weights reach"
    judged = False
    note = (
        "The strong recipe with other values of `average_ramp`, r: weights are averaged over about one in r of all "
        "updates so far, with r = 1 over all of them alike. It acts at test only: rows of a benchmark that are asked "
        "for at once are one training, tested in several ways. Without the metric of all coresets, which came later, "
        "and with it where that says so."
    )

    def cells(self) -> list[Cell]:
        return [cell for benchmark in BENCHMARKS for cell in _rows(benchmark)]

    def markdown(self, found: Found) -> str:
        parts = [self._table(benchmark, found) for benchmark in BENCHMARKS]
        return "\n".join([*parts, f"{paper_tables.SPREAD} {LEARNED}", ""])

    def _table(self, benchmark: str, found: Found) -> str:
        own = strong_settings(benchmark, "kcl").average_ramp
        title = f"{TITLES[benchmark]}{', in miniature' if found.scale.note else ''}"
        header = (title, *MEASURED, "command")
        lines = [header, ("---", *["---:"] * (len(header) - 2), "---")]
        for cell in _rows(benchmark):
            row = f"**{cell.row}** (the recipe)" if cell.changes == {"average_ramp": own} else cell.row
            lines.append((row, *measured(cell, found), asked(cell, found)))
        return "\n".join([*map(paper_tables.row, lines), ""])

    def rows(self, found: Found) -> list[dict[str, Any]]:
        return StrongResults().rows(found, self.cells())

    def figure(self, found: Found) -> Figure:
        def line(benchmark: str) -> list[tuple[str, list[tuple[float, Cell]]]]:
            lines = {"without the metric": _swept(benchmark), "with it": _with_metric(benchmark)}
            return [(name, [(cell.changes["average_ramp"], cell) for cell in own]) for name, own in lines.items()]

        return panels(
            [
                (TITLES[benchmark], sweep(line(benchmark), found, "average_ramp", measure))
                for benchmark in BENCHMARKS
                for measure in MEASURES
            ],
            found,
            columns=len(MEASURES),
        )


def _rows(benchmark: str) -> list[Cell]:
    return [*_swept(benchmark), _last(benchmark), *_with_metric(benchmark)]


def _swept(benchmark: str) -> list[Cell]:
    ramps = sorted({*RAMPS, *FURTHER.get(benchmark, ())})
    return [_cell(f"r = {ramp:g}", benchmark, average_ramp=ramp) for ramp in ramps]


def _with_metric(benchmark: str) -> list[Cell]:
    ramps = sorted({*MEASURED_WITH[benchmark], strong_settings(benchmark, "kcl").average_ramp})
    row = "r = {:g}, with the metric"
    return [Cell(row.format(ramp), benchmark, changes={"average_ramp": ramp}, recipe="strong") for ramp in ramps]


def _last(benchmark: str) -> Cell:
    paper = published_settings(benchmark, "kcl")
    return _cell(LAST, benchmark, weight_average=paper.weight_average, average_ramp=paper.average_ramp)


def _cell(row: str, benchmark: str, **changes: Any) -> Cell:
    return Cell(row, benchmark, changes=changes | {"shared_metric": 0.0}, recipe="strong")
