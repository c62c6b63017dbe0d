"""Figures over the stream: what becomes of the first tasks, the influence of the number of tasks, all methods."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from kcl.paper import paper_tables
from kcl.paper.cell import CIFAR100, MINIIMAGENET, PERMUTED, ROTATED, Cell
from kcl.paper.comparison import KCL, PAPER, ROWS
from kcl.paper.item import Found, Item
from kcl.paper.paper_figures import courses, first_tasks, panels

if TYPE_CHECKING:
    from matplotlib.figure import Figure

THREE = (PERMUTED, ROTATED, CIFAR100)


class FirstTasks(Item):
    name = "first-tasks"
    place = "Figure 2"
    title = "Accuracy of the first five tasks over the stream"
    note = "The paper draws this figure and prints no numbers."

    def cells(self) -> list[Cell]:
        return [Cell(KCL, benchmark, published=PAPER[benchmark]["kcl"]) for benchmark in THREE]

    def markdown(self, found: Found) -> str:
        return paper_tables.markdown(self.cells(), found, KCL, "method")

    def rows(self, found: Found) -> list[dict[str, Any]]:
        """Accuracy on each of the first five tasks after each task, mean and deviation over seeds."""
        made = []
        for cell in self.cells():
            group = found.group(cell)
            if group is None or not group.runs:
                continue
            matrices = group.matrices()
            for task in range(min(5, group.tasks)):
                for after in range(task, group.tasks):
                    where = {"benchmark": cell.column, "task": task, "after task": after}
                    made.append(where | _spread(matrices[:, after, task]))
        return made

    def figure(self, found: Found) -> Figure:
        return panels([(cell.column, first_tasks(cell, found)) for cell in self.cells()], found)


class _Courses(Item):
    """Average accuracy over the tasks seen, after each task."""

    reference: str
    first: str

    def markdown(self, found: Found) -> str:
        return paper_tables.markdown(self.cells(), found, self.reference, self.first)

    def rows(self, found: Found) -> list[dict[str, Any]]:
        made = []
        for cell in self.cells():
            group = found.group(cell)
            if group is None or not group.runs:
                continue
            matrices = group.matrices()
            for after in range(group.tasks):
                seen = matrices[:, after, : after + 1].mean(1)
                if np.isfinite(seen).all():  # joint training is tested at its end only
                    where = {"benchmark": cell.column, "row": cell.row, "tasks learned": after + 1}
                    made.append(where | _spread(seen))
        return made


def _spread(accuracies: np.ndarray) -> dict[str, float | None]:
    deviation = float(accuracies.std(ddof=1)) if len(accuracies) > 1 else None
    return {"accuracy": float(accuracies.mean()), "deviation": deviation}


class NumberOfTasks(_Courses):
    name = "number-of-tasks"
    place = "Figure 3"
    title = "Influence of the number of tasks"
    note = (
        "The paper draws this figure and prints no numbers; it does not say which three coreset sizes it shows. Ours: "
        "5, 20 and 40 per class."
    )
    reference, first = "VRF, coreset 20", "kernel and coreset"

    def cells(self) -> list[Cell]:
        sizes = [
            Cell(f"VRF, coreset {size}", benchmark, changes={"coreset_size_per_class": size})
            for benchmark in (CIFAR100, MINIIMAGENET)
            for size in (5, 20, 40)
        ]
        return [*sizes, Cell("RBF, coreset 20", CIFAR100, changes={"kernel": "rbf"})]

    def figure(self, found: Found) -> Figure:
        cells = self.cells()
        rows = list(dict.fromkeys(cell.row for cell in cells))
        return panels(
            [
                ("Split CIFAR-100", courses(cells[:3], found, rows)),
                ("Split miniImageNet", courses(cells[3:6], found, rows)),
                ("VRF and RBF, Split CIFAR-100", courses([cells[1], cells[6]], found, rows)),
            ],
            found,
        )


class AllMethods(_Courses):
    name = "all-methods"
    place = "Figure 7"
    title = "Average accuracy of all methods over 20 tasks"
    reference, first = KCL, "method"

    def cells(self) -> list[Cell]:
        return [
            Cell(row, benchmark, method, published=PAPER[benchmark].get(method))
            for benchmark in THREE
            for row, method in ROWS.items()
        ]

    def figure(self, found: Found) -> Figure:
        return panels(
            [
                (own[0].column, courses(own, found))
                for benchmark in THREE
                if (own := [cell for cell in self.cells() if cell.benchmark == benchmark])
            ],
            found,
        )
