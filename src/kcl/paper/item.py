"""The interface of every table and figure."""

from __future__ import annotations

import csv
import io
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from kcl.core.files import write_whole
from kcl.experiments.run_spec import RunSpec
from kcl.paper.cell import Cell, Scale
from kcl.paper.finished_runs import FinishedRuns
from kcl.paper.panels import Panel, side_by_side
from kcl.report import figures

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class MeasureOptions(NamedTuple):
    """How to measure what runs do not record: on which device, into which folder."""

    folder: Path
    device: str
    precision: str
    scale: Scale
    resume: bool
    command: str
    say: Callable[[str], None]


class Item(ABC):
    """One table or figure."""

    name: ClassVar[str]
    place: ClassVar[str]
    """Its place in the paper."""
    title: ClassVar[str]
    note: ClassVar[str] = ""
    """What a reader must know to compare our numbers with the paper's."""
    miniature_note: ClassVar[str] = ""
    """What its miniature leaves out."""
    in_paper: ClassVar[bool] = True
    """Whether the paper has it. Numbers are compared with the paper's only then."""
    panel_width: ClassVar[float] = 3.6
    panels_in_row: ClassVar[int] = 4

    def cells(self) -> Sequence[Cell]:
        """All runs that it needs."""
        return ()

    def specs(self, scale: Scale, seeds: Sequence[int]) -> list[RunSpec]:
        cells = [each for cell in self.cells() for each in (cell, cell.nearer) if each is not None]
        return [spec for cell in cells for spec in scale.specs(cell, seeds)]

    def measure(self, options: MeasureOptions) -> None:  # noqa: B027 - most items have nothing to measure
        """Measure what runs do not record."""

    @abstractmethod
    def markdown(self, runs: FinishedRuns) -> str:
        """The table in Markdown."""

    @abstractmethod
    def rows(self, runs: FinishedRuns) -> list[dict[str, Any]]:
        """The same numbers for a CSV file."""

    def panels(self, runs: FinishedRuns) -> list[Panel]:  # noqa: ARG002
        """The panels of its figure, if it has one."""
        return []

    def figure(self, runs: FinishedRuns) -> Figure | None:
        panels = self.panels(runs)
        return side_by_side(panels, runs.miniature, self.panel_width, self.panels_in_row) if panels else None

    def write(self, runs: FinishedRuns, out: Path) -> list[Path]:
        """Write table.md, table.csv and, with matplotlib, the figure as SVG, PDF and PNG."""
        place = f"{self.place} of the paper" if self.in_paper else self.place
        heading = f"# {self.title}\n\n{place}. `kcl reproduce {self.name}`\n"
        notes = [runs.scale.note, self.miniature_note if runs.miniature else "", self.note]
        text = "\n".join([heading, *(f"{note}\n" for note in notes if note), self.markdown(runs)])
        rows, table = self.rows(runs), io.StringIO()
        writer = csv.DictWriter(table, list(rows[0]) if rows else [], lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
        contents = {"table.md": text.encode(), "table.csv": table.getvalue().encode()}
        figure = self.figure(runs) if figures.available() else None
        if figure is not None:
            contents |= {f"figure.{kind}": figures.render(figure, kind) for kind in ("svg", "pdf", "png")}
        for name, content in contents.items():
            write_whole(out / self.name / name, content)
        return [out / self.name / name for name in contents]
