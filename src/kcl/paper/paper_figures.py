"""The paper's figures: accuracy over the stream (Figures 2, 3 and 7), and against one setting (Figures 4 to 6)."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

from kcl.paper.cell import Cell, FinishedRuns
from kcl.paper.item import CellTables
from kcl.paper.panels import accuracy_curves, first_task_curves, sweep
from kcl.paper.paper_tables import KCL, method_cells
from kcl.report.figures import FIRST_TASKS, Curve, Panel, average_accuracy_curve, task_curve
from kcl.report.groups import SeedGroup
from kcl.report.published import BENCHMARK_TITLES, CIFAR100, MINIIMAGENET, PERMUTED, ROTATED, TABLE_5

SHOWN = (PERMUTED, ROTATED, CIFAR100)


class StreamFigure(CellTables):
    """Average accuracy over the tasks seen, after each task."""

    def rows(self, runs: FinishedRuns) -> list[dict[str, Any]]:
        groups = [(cell.column, group) for cell in self.cells() if (group := runs.group(cell)) and group.runs]
        return [
            {"benchmark": column, **point, "accuracy": mean, "deviation": band if len(group.runs) > 1 else None}
            for column, group in groups
            for points, curve in self.curves(group)
            for point, mean, band in zip(points, curve.mean.tolist(), curve.band.tolist(), strict=True)
            if math.isfinite(mean)  # joint training is tested only at its end
        ]

    def curves(self, group: SeedGroup) -> list[tuple[list[dict[str, Any]], Curve]]:
        """What the points of each curve are, and the curve."""
        points = [{"row": group.label, "tasks learned": learned + 1} for learned in range(group.tasks)]
        return [(points, average_accuracy_curve(group))]


class FirstTasks(StreamFigure):
    name = "first-tasks"
    place = "Figure 2"
    title = "Accuracy of the first five tasks over the stream"
    note = "The paper draws this figure and prints no numbers."
    reference, row_heading = KCL, "method"

    def cells(self) -> list[Cell]:
        return [Cell(KCL, benchmark, published=TABLE_5[benchmark]["kcl"]) for benchmark in SHOWN]

    def curves(self, group: SeedGroup) -> list[tuple[list[dict[str, Any]], Curve]]:
        return [
            ([{"task": task + 1, "tasks learned": t + 1} for t in range(task, group.tasks)], task_curve(group, task))
            for task in range(min(FIRST_TASKS, group.tasks))
        ]

    def panels(self, runs: FinishedRuns) -> list[Panel]:
        return [(cell.column, partial(first_task_curves, cell=cell, runs=runs)) for cell in self.cells()]


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

    def panels(self, runs: FinishedRuns) -> list[Panel]:
        cells = self.cells()
        rows = list(dict.fromkeys(cell.row for cell in cells))
        contents = {
            "Split CIFAR-100": cells[:3],
            "Split miniImageNet": cells[3:6],
            "VRF and RBF, Split CIFAR-100": [cells[1], cells[6]],
        }
        return [
            (title, partial(accuracy_curves, cells=curves, runs=runs, rows=rows)) for title, curves in contents.items()
        ]


class AllMethods(StreamFigure):
    name = "all-methods"
    place = "Figure 7"
    title = "Average accuracy of all methods over 20 tasks"
    reference, row_heading = KCL, "method"

    def cells(self) -> list[Cell]:
        return [cell for benchmark in SHOWN for cell in method_cells(benchmark)]

    def panels(self, runs: FinishedRuns) -> list[Panel]:
        return [
            (BENCHMARK_TITLES[benchmark], partial(accuracy_curves, cells=method_cells(benchmark), runs=runs))
            for benchmark in SHOWN
        ]


class Sweep(CellTables):
    """One panel per benchmark, one line per kernel, one point per value of a setting."""

    setting: str
    values: tuple[int, ...]
    benchmarks: tuple[str, ...] = tuple(BENCHMARK_TITLES)
    kernels: tuple[str, ...] = ("VRF",)

    def cells(self) -> list[Cell]:
        return [cell for name in self.benchmarks for line in self.lines(name).values() for cell in line.values()]

    def lines(self, benchmark: str) -> dict[str, dict[float, Cell]]:
        def cell(kernel: str, value: int) -> Cell:
            row = str(value) if len(self.kernels) == 1 else f"{kernel}, {value}"
            return Cell(row, benchmark, changes={"kernel": kernel.lower(), self.setting: value})

        return {kernel: {float(value): cell(kernel, value) for value in self.values} for kernel in self.kernels}

    def panels(self, runs: FinishedRuns) -> list[Panel]:
        draw = partial(sweep, runs=runs, xlabel=self.row_heading, measure="average_accuracy")
        return [(BENCHMARK_TITLES[name], partial(draw, lines=self.lines(name))) for name in self.benchmarks]


class MemoryBenefit(Sweep):
    name = "memory-benefit"
    place = "Figure 4"
    title = "Memory benefit of variational random features"
    note = (
        "The paper says that VRF exceeds RBF at all five sizes, and that VRF with 20 samples per class is about as "
        "good as RBF with 40. It names only these two sizes; the other three are our choice. What its authors' code "
        "computes under the name RBF is the Laplacian kernel exp(−¼‖x − y‖₁), drawn here too."
    )
    setting, row_heading = "coreset_size_per_class", "coreset samples per class"
    values, benchmarks = (5, 10, 20, 30, 40), (CIFAR100,)
    kernels = ("VRF", "RBF", "Laplacian")
    reference = "VRF, 20"


class CoresetSize(Sweep):
    name = "coreset-size"
    place = "Figure 5 and its supplement for miniImageNet"
    title = "How much inference memory?"
    note = "The paper draws this figure and prints no numbers. Sizes are samples per class."
    setting, row_heading = "coreset_size_per_class", "coreset samples per class"
    values = (1, 2, 5, 10, 20, 30, 40, 50)
    reference = "20"


class Bases(Sweep):
    name = "bases"
    place = "Figure 6 and its supplement for miniImageNet"
    title = "How many random bases?"
    note = "The paper draws this figure and prints no numbers; it says only that 256 bases do well already."
    setting, row_heading = "bases", "random Fourier features D"
    values = (256, 512, 1024, 2048)
    reference = "1024"
