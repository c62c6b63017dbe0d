"""The interface of every table and figure, and tables whose rows are cells."""

from __future__ import annotations

import csv
import io
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from kcl.core.files import write_whole
from kcl.experiments.run_spec import RunSpec
from kcl.paper.cell import Cell, FinishedRuns, Scale
from kcl.paper.columns import FORGETTING_NOTE, MEASURED, PAPER, SPREAD, Column, cell_table, paired_difference
from kcl.report import figures
from kcl.report.figures import Panel
from kcl.report.published import BENCHMARK_TITLES

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MINIATURE = "In miniature, on scikit-learn's digits: not the paper's experiment"


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

    def searches(self) -> Sequence[str]:
        """The commands of the searches that choose settings for its runs, if they are its own."""
        return ()

    def specs(self, scale: Scale, seeds: Sequence[int]) -> list[RunSpec]:
        cells = [each for cell in self.cells() for each in (cell, cell.nearer) if each is not None]
        return [spec for cell in cells for spec in scale.specs(cell, seeds)]

    @abstractmethod
    def markdown(self, runs: FinishedRuns) -> str:
        """The table in Markdown."""

    @abstractmethod
    def rows(self, runs: FinishedRuns) -> list[dict[str, Any]]:
        """The same numbers for a CSV file."""

    def builds(self, runs: FinishedRuns) -> str:
        """From how many builds of the code its runs come: seeds of several are not repetitions of one experiment."""
        records = [record for spec in self.specs(runs.scale, runs.seeds) if (record := runs.find(spec))]
        digests = [record.get("versions", {}).get("code") for record in records]
        known = sorted({digest for digest in digests if digest})
        older = digests.count(None)
        parts = [f"{len(records) - older} from {len(known)} ({', '.join(known)})"] if known else []
        parts += [f"{older} do not say: they are older than the digest of the code in results"] if older else []
        return f"Runs: {len(records)}. Builds of the code: {'; '.join(parts)}." if parts else ""

    def panels(self, runs: FinishedRuns) -> list[Panel]:  # noqa: ARG002
        """The panels of its figure, if it has one."""
        return []

    def figure(self, runs: FinishedRuns) -> Figure | None:
        title, panels = MINIATURE if runs.miniature else "", self.panels(runs)
        return figures.side_by_side(panels, self.panel_width, self.panels_in_row, title) if panels else None

    def write(self, runs: FinishedRuns, out: Path) -> list[Path]:
        """Write table.md, table.csv and, with matplotlib, the figure as SVG, PDF and PNG."""
        place = f"{self.place} of the paper" if self.in_paper else self.place
        notes = [runs.scale.note, self.miniature_note if runs.miniature else "", self.note]
        parts = [f"# {self.title}", f"{place}. `kcl reproduce {self.name}`", *notes]
        parts += [self.markdown(runs).rstrip("\n"), self.builds(runs)]
        rows, table = self.rows(runs), io.StringIO()
        writer = csv.DictWriter(table, list(rows[0]) if rows else [], lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
        paths = [out / self.name / "table.md", out / self.name / "table.csv"]
        for path, text in zip(paths, ("\n\n".join(filter(None, parts)) + "\n", table.getvalue()), strict=True):
            write_whole(path, text.encode())
        figure = self.figure(runs) if figures.available() else None
        return paths + (figures.save(figure, out / self.name / "figure", ("svg", "pdf", "png")) if figure else [])


class Part(NamedTuple):
    """One of an item's tables."""

    cells: Sequence[Cell]
    title: str = ""
    row_heading: str = ""
    """Above the names of its rows, where it is not the item's."""
    further: Sequence[Sequence[str]] = ()
    """Rows that are no cells."""
    below: str = ""


class CellTables(Item):
    """Tables whose rows are cells: one per benchmark, its rows compared with a reference row and with the paper."""

    row_heading: ClassVar[str]
    reference: ClassVar[str]
    benchmarks: ClassVar[Sequence[str]]
    level: ClassVar[str] = "##"
    """Of the tables' headings."""

    def rows_of(self, benchmark: str) -> list[Cell]:
        """The rows of a benchmark's table."""
        raise NotImplementedError

    def cells(self) -> list[Cell]:
        return [cell for benchmark in self.benchmarks for cell in self.rows_of(benchmark)]

    @property
    def legend(self) -> str:
        return (
            f"{SPREAD} The column “vs. {self.reference}” is the mean of the paired differences in accuracy to that "
            f"row, over the seeds that both have, with its 95 % interval. {FORGETTING_NOTE}"
        )

    def columns(self) -> Sequence[Column]:
        """The columns of the CSV file."""
        references = [cell for cell in self.cells() if cell.row == self.reference]
        return [*MEASURED, paired_difference(self.reference, references), *PAPER]

    def shown_columns(self) -> Sequence[Column]:
        """Those of the tables in Markdown."""
        return self.columns()

    def parts(self, runs: FinishedRuns) -> list[Part]:  # noqa: ARG002
        return [Part(self.rows_of(benchmark), BENCHMARK_TITLES[benchmark]) for benchmark in self.benchmarks]

    def markdown(self, runs: FinishedRuns) -> str:
        texts = []
        for part in self.parts(runs):
            texts += [f"{self.level} {part.title}{runs.scale.suffix}"] if part.title else []
            heading = part.row_heading or self.row_heading
            texts += [cell_table(heading, self.shown_columns(), part.cells, runs, part.further), part.below]
        return "\n\n".join([*filter(None, texts), self.legend]) + "\n"

    def rows(self, runs: FinishedRuns) -> list[dict[str, Any]]:
        columns = self.columns()
        return [
            {"benchmark": cell.column, "row": cell.row}
            | {name: number for column in columns for name, number in column.numbers(cell, runs).items()}
            for cell in self.cells()
        ]
