"""Accuracy against cost: images that pass the backbone, and bytes kept."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from kcl.methods.strong_recipe import strong_settings
from kcl.paper.cell import Cell
from kcl.paper.finished_runs import FinishedRuns
from kcl.paper.paper_figures import Point, panels, scatter
from kcl.paper.paper_tables import SPREAD, cell_table
from kcl.paper.run_cost import NOTE, cost_of
from kcl.paper.strong_results import (
    BENCHMARKS,
    LEARNED,
    OTHERS,
    PUBLISHED,
    STRONG,
    STRONG_COLUMNS,
    StrongItem,
    StrongResults,
)
from kcl.report.published import BENCHMARK_TITLES, CIFAR100

if TYPE_CHECKING:
    from matplotlib.figure import Figure

CORESET_SIZES = (5, 10)
"""Samples per class, besides the recipe's 20."""
UPDATES = (1, 4)
"""Updates per batch, besides the recipe's 2."""
EQUAL_MEMORY = "ER-Reservoir, strong recipe, as many samples as KCL"


class StrongCost(StrongItem):
    name = "strong-cost"
    title = "Accuracy against compute and memory"
    note = (
        "All methods as in strong-results; on Split CIFAR-100 also the strong recipe with other coreset sizes and "
        "updates per batch, and ER-Reservoir with as many samples as KCL, tested with an average over a ninth of the "
        "stream."
    )

    def cells(self) -> list[Cell]:
        return [*StrongResults().cells(), *self.variants()]

    def variants(self) -> list[Cell]:
        """A few further cells on Split CIFAR-100, the cheap ones first."""

        def strong(name: str, **changes: int) -> Cell:
            return Cell(f"{STRONG}, {name}", CIFAR100, changes=changes, recipe="strong")

        size = strong_settings(CIFAR100, "kcl").coreset_size_per_class
        return [
            *(strong(f"coreset {value}", coreset_size_per_class=value) for value in CORESET_SIZES),
            *(strong(f"updates {value}", updates_per_batch=value) for value in UPDATES),
            Cell(EQUAL_MEMORY, CIFAR100, "er-reservoir", {"memory_per_class": size}, recipe="strong"),
        ]

    def markdown(self, runs: FinishedRuns) -> str:
        cells = [StrongResults().cells()[0], *self.variants()]
        return f"{cell_table('Split CIFAR-100', STRONG_COLUMNS, cells, runs)}\n\n{SPREAD} {LEARNED} {NOTE}\n"

    def figure(self, runs: FinishedRuns) -> Figure:
        contents = []
        for title, field, xlabel in (
            ("compute", "images_per_sample", "images passed per training sample"),
            ("memory", "bytes_kept", "bytes kept"),
        ):
            for benchmark in BENCHMARKS:
                points = self._points(benchmark, runs)
                costs = [getattr(cost_of(point.cell, runs), field) for point in points]
                draw = partial(scatter, points=points, costs=costs, runs=runs, xlabel=xlabel)
                contents.append((f"{BENCHMARK_TITLES[benchmark]}: {title}", draw))
        return panels(contents, runs)

    def _points(self, benchmark: str, runs: FinishedRuns) -> list[Point]:
        looks = {row: place for place, row in enumerate((STRONG, *OTHERS))}
        points = [
            Point(cell, cell.row, looks.get(cell.row, 0), hollow=cell.row == PUBLISHED)
            for cell in StrongResults().shown(benchmark, runs)
        ]
        replay = looks["ER-Reservoir, strong recipe"]
        return points + [
            Point(cell, None, replay, text="as many samples")
            if cell.row == EQUAL_MEMORY
            else Point(cell, None, 0, text=cell.row.removeprefix(f"{STRONG}, "), below="coreset" in cell.row)
            for cell in (self.variants() if benchmark == CIFAR100 else [])
        ]
