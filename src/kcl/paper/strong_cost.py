"""Accuracy against what it costs: images that pass the backbone, and bytes that are kept."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kcl.methods.strong_recipe import strong_settings
from kcl.paper import paper_tables
from kcl.paper.cell import CIFAR100, TITLES, Cell
from kcl.paper.item import Found, Item
from kcl.paper.paper_figures import Point, panels, scatter
from kcl.paper.run_cost import HEADER, NOTE, cost_of
from kcl.paper.strong_results import (
    BENCHMARKS,
    LEARNED,
    MEASURED,
    OTHERS,
    PUBLISHED,
    STRONG,
    WITHOUT_IMAGES,
    StrongResults,
    line,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

CORESETS = (5, 10)
"""Samples per class, beside the recipe's own 20."""
UPDATES = (1, 4)
"""Per batch, beside the recipe's own 2."""
AS_MANY = "ER-Reservoir, strong recipe, as many samples as KCL"


class StrongCost(Item):
    name = "strong-cost"
    place = "Past the paper (docs/strong.md)"
    title = "Accuracy against compute and memory"
    judged = False
    note = (
        "All methods as in strong-results; on Split CIFAR-100 also the strong recipe with other coresets and updates "
        "per batch, and ER-Reservoir with as many samples as KCL, tested with an average over a ninth of the stream."
    )
    miniature = WITHOUT_IMAGES

    def cells(self) -> list[Cell]:
        return [*StrongResults().cells(), *self.further()]

    def further(self) -> list[Cell]:
        """On Split CIFAR-100, few, the cheap ones first."""
        size = strong_settings(CIFAR100, "kcl").coreset_size_per_class
        return [
            *(_strong(f"coreset {value}", coreset_size_per_class=value) for value in CORESETS),
            *(_strong(f"updates {value}", updates_per_batch=value) for value in UPDATES),
            Cell(AS_MANY, CIFAR100, "er-reservoir", {"memory_per_class": size}, recipe="strong"),
        ]

    def markdown(self, found: Found) -> str:
        header = ("Split CIFAR-100", *MEASURED, *HEADER, "command")
        ruler = ("---", *["---:"] * (len(header) - 2), "---")
        whole = StrongResults().cells()[0]
        lines = [header, ruler, *(line(cell, found) for cell in (whole, *self.further()))]
        return "\n".join([*map(paper_tables.row, lines), "", f"{paper_tables.SPREAD} {LEARNED} {NOTE}", ""])

    def rows(self, found: Found) -> list[dict[str, Any]]:
        return StrongResults().rows(found, self.cells())

    def figure(self, found: Found) -> Figure:
        points = {benchmark: self._points(benchmark, found) for benchmark in BENCHMARKS}
        return panels(
            [
                (f"{TITLES[benchmark]}: {what}", scatter(points[benchmark], found, across(found, axis), xlabel))
                for what, axis, xlabel in (
                    ("compute", "images a sample", "images passed per training sample"),
                    ("memory", "bytes kept", "bytes kept"),
                )
                for benchmark in BENCHMARKS
            ],
            found,
        )

    def _points(self, benchmark: str, found: Found) -> list[Point]:
        looks = {row: place for place, row in enumerate((STRONG, *OTHERS))}
        points = [
            Point(cell, cell.row, looks.get(cell.row, 0), hollow=cell.row == PUBLISHED)
            for cell in StrongResults().shown(benchmark, found)
        ]
        further = self.further() if benchmark == CIFAR100 else []
        own = looks[next(row for row, method in OTHERS.items() if method == "er-reservoir")]
        return points + [
            Point(cell, None, own, beside="as many samples")
            if cell.row == AS_MANY
            else Point(cell, None, 0, beside=cell.row.removeprefix(f"{STRONG}, "), below="coreset" in cell.row)
            for cell in further
        ]


def _strong(what: str, **changes: int) -> Cell:
    return Cell(f"{STRONG}, {what}", CIFAR100, changes=changes, recipe="strong")


def across(found: Found, axis: str) -> Any:
    """What a cell costs, by the name it has in `Cost.to_dict`."""

    def cost(cell: Cell) -> float | None:
        own = cost_of(cell, found)
        return None if own is None else own.to_dict()[axis]

    return cost
