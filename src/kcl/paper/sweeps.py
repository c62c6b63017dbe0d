"""Figures that show average accuracy against one setting."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from kcl.paper import paper_tables
from kcl.paper.cell import Cell
from kcl.paper.item import Found, Item
from kcl.paper.paper_figures import panels, sweep

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NAMES = {"vrf": "VRF", "rbf": "RBF", "laplacian": "Laplacian"}


class Sweep(Item):
    """One panel per benchmark, one line per kernel, one point per value of a setting."""

    setting: str
    axis: str
    values: dict[str, tuple[int, ...]]
    """By benchmark."""
    kernels: tuple[str, ...] = ("vrf",)
    reference: str

    def cells(self) -> list[Cell]:
        return [
            self._cell(benchmark, kernel, value)
            for benchmark, values in self.values.items()
            for kernel in self.kernels
            for value in values
        ]

    def _cell(self, benchmark: str, kernel: str, value: int) -> Cell:
        return Cell(self._row(kernel, value), benchmark, changes={"kernel": kernel, self.setting: value})

    def _row(self, kernel: str, value: int) -> str:
        return str(value) if len(self.kernels) == 1 else f"{NAMES[kernel]}, {value}"

    def markdown(self, found: Found) -> str:
        return paper_tables.markdown(self.cells(), found, self.reference, self.axis)

    def rows(self, found: Found) -> list[dict[str, Any]]:
        return paper_tables.rows(self.cells(), found, self.reference)

    def figure(self, found: Found) -> Figure:
        def lines(benchmark: str, values: Sequence[int]) -> list[tuple[str, list[tuple[float, Cell]]]]:
            return [
                (NAMES[kernel], [(float(value), self._cell(benchmark, kernel, value)) for value in values])
                for kernel in self.kernels
            ]

        return panels(
            [
                (
                    self._cell(benchmark, self.kernels[0], values[0]).column,
                    sweep(lines(benchmark, values), found, self.axis),
                )
                for benchmark, values in self.values.items()
            ],
            found,
        )
