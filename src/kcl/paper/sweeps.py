"""Figures that show average accuracy against one setting: coreset size and number of random bases."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from kcl.paper.cell import Cell
from kcl.paper.finished_runs import FinishedRuns
from kcl.paper.paper_figures import panels, sweep
from kcl.paper.paper_tables import CellTable
from kcl.report.published import BENCHMARK_TITLES, CIFAR100

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class Sweep(CellTable):
    """One panel per benchmark, one line per kernel, one point per value of a setting."""

    setting: str
    values: tuple[int, ...]
    benchmarks: tuple[str, ...] = tuple(BENCHMARK_TITLES)
    kernels: tuple[str, ...] = ("VRF",)

    def cells(self) -> list[Cell]:
        return [cell for benchmark in self.benchmarks for line in self._lines(benchmark).values() for _, cell in line]

    def _lines(self, benchmark: str) -> dict[str, list[tuple[float, Cell]]]:
        return {
            name: [(float(value), self._cell(benchmark, name, value)) for value in self.values] for name in self.kernels
        }

    def _cell(self, benchmark: str, name: str, value: int) -> Cell:
        row = str(value) if len(self.kernels) == 1 else f"{name}, {value}"
        return Cell(row, benchmark, changes={"kernel": name.lower(), self.setting: value})

    def figure(self, runs: FinishedRuns) -> Figure:
        return panels(
            [
                (
                    BENCHMARK_TITLES[benchmark],
                    partial(sweep, lines=self._lines(benchmark), runs=runs, xlabel=self.row_heading),
                )
                for benchmark in self.benchmarks
            ],
            runs,
        )


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
