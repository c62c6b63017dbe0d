"""Figures over the stream: accuracy of the first tasks, influence of the number of tasks, all methods."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from kcl.paper.accuracy_tables import KCL, METHOD_ROWS
from kcl.paper.cell import Cell
from kcl.paper.finished_runs import FinishedRuns
from kcl.paper.paper_figures import accuracy_curves, first_tasks, panels
from kcl.paper.paper_tables import CellTable
from kcl.report.figures import FIRST_TASKS
from kcl.report.groups import SeedGroup
from kcl.report.published import CIFAR100, MINIIMAGENET, PERMUTED, ROTATED, TABLE_5

if TYPE_CHECKING:
    from matplotlib.figure import Figure

BENCHMARKS = (PERMUTED, ROTATED, CIFAR100)


class StreamFigure(CellTable):
    """Average accuracy over the tasks seen, after each task."""

    def rows(self, runs: FinishedRuns) -> list[dict[str, Any]]:
        return [
            {"benchmark": cell.column, **point, **_spread(accuracies)}
            for cell in self.cells()
            if (group := runs.group(cell)) is not None and group.runs
            for point, accuracies in self._points(group)
            if np.isfinite(accuracies).all()  # joint training is tested only at its end
        ]

    def _points(self, group: SeedGroup) -> Iterator[tuple[dict[str, Any], np.ndarray]]:
        """The points of a curve, and the accuracies of the runs there."""
        matrices = group.matrices()
        for after in range(group.tasks):
            yield {"row": group.label, "tasks learned": after + 1}, matrices[:, after, : after + 1].mean(1)


def _spread(accuracies: np.ndarray) -> dict[str, float | None]:
    deviation = float(accuracies.std(ddof=1)) if len(accuracies) > 1 else None
    return {"accuracy": float(accuracies.mean()), "deviation": deviation}


class FirstTasks(StreamFigure):
    name = "first-tasks"
    place = "Figure 2"
    title = "Accuracy of the first five tasks over the stream"
    note = "The paper draws this figure and prints no numbers."
    reference, row_heading = KCL, "method"

    def cells(self) -> list[Cell]:
        return [Cell(KCL, benchmark, published=TABLE_5[benchmark]["kcl"]) for benchmark in BENCHMARKS]

    def _points(self, group: SeedGroup) -> Iterator[tuple[dict[str, Any], np.ndarray]]:
        matrices = group.matrices()
        for task in range(min(FIRST_TASKS, group.tasks)):
            for after in range(task, group.tasks):
                yield {"task": task, "after task": after}, matrices[:, after, task]

    def figure(self, runs: FinishedRuns) -> Figure:
        return panels([(cell.column, partial(first_tasks, cell=cell, runs=runs)) for cell in self.cells()], runs)


class NumberOfTasks(StreamFigure):
    name = "number-of-tasks"
    place = "Figure 3"
    title = "Influence of the number of tasks"
    note = (
        "The paper draws this figure and prints no numbers; it does not say which three coreset sizes it shows. Ours: "
        "5, 20 and 40 per class."
    )
    reference, row_heading = "VRF, coreset 20", "kernel and coreset"

    def cells(self) -> list[Cell]:
        sizes = [
            Cell(f"VRF, coreset {size}", benchmark, changes={"coreset_size_per_class": size})
            for benchmark in (CIFAR100, MINIIMAGENET)
            for size in (5, 20, 40)
        ]
        return [*sizes, Cell("RBF, coreset 20", CIFAR100, changes={"kernel": "rbf"})]

    def figure(self, runs: FinishedRuns) -> Figure:
        cells = self.cells()
        rows = list(dict.fromkeys(cell.row for cell in cells))
        contents = {
            "Split CIFAR-100": cells[:3],
            "Split miniImageNet": cells[3:6],
            "VRF and RBF, Split CIFAR-100": [cells[1], cells[6]],
        }
        return panels(
            [
                (title, partial(accuracy_curves, cells=curves, runs=runs, rows=rows))
                for title, curves in contents.items()
            ],
            runs,
        )


class AllMethods(StreamFigure):
    name = "all-methods"
    place = "Figure 7"
    title = "Average accuracy of all methods over 20 tasks"
    reference, row_heading = KCL, "method"

    def cells(self) -> list[Cell]:
        return [cell for benchmark in BENCHMARKS for cell in self._methods(benchmark)]

    def _methods(self, benchmark: str) -> list[Cell]:
        printed = TABLE_5[benchmark]
        return [Cell(row, benchmark, method, published=printed.get(method)) for row, method in METHOD_ROWS.items()]

    def figure(self, runs: FinishedRuns) -> Figure:
        columns = [self._methods(benchmark) for benchmark in BENCHMARKS]
        return panels([(cells[0].column, partial(accuracy_curves, cells=cells, runs=runs)) for cells in columns], runs)
