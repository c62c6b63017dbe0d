"""The interface of every table and figure; tables whose rows are cells, in Markdown and as numbers for a CSV file."""

from __future__ import annotations

import csv
import io
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from kcl.core.files import write_whole
from kcl.experiments.run_spec import RunSpec
from kcl.paper.cell import Cell, FinishedRuns, Scale
from kcl.report import figures
from kcl.report.figures import Panel
from kcl.report.formatting import MISSING, interval, markdown_table, spread
from kcl.report.published import PaperResult
from kcl.report.summary import Summary

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MINIATURE = "In miniature, on scikit-learn's digits: not the paper's experiment"
NOT_MEASURED = "not measured yet"
SPREAD = (
    "Mean ± sample standard deviation over seeds; 95 % confidence interval of the mean by Student's t; diverged runs "
    "are counted, not averaged."
)


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
        folder, place = out / self.name, f"{self.place} of the paper" if self.in_paper else self.place
        heading = f"# {self.title}\n\n{place}. `kcl reproduce {self.name}`\n"
        notes = [runs.scale.note, self.miniature_note if runs.miniature else "", self.note]
        text = "\n".join([heading, *(f"{note}\n" for note in notes if note), self.markdown(runs)])
        text += f"\n{builds}\n" if (builds := self.builds(runs)) else ""
        rows, table = self.rows(runs), io.StringIO()
        writer = csv.DictWriter(table, list(rows[0]) if rows else [], lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
        write_whole(folder / "table.md", text.encode())
        write_whole(folder / "table.csv", table.getvalue().encode())
        paths = [folder / "table.md", folder / "table.csv"]
        figure = self.figure(runs) if figures.available() else None
        return paths + (figures.save(figure, folder / "figure", ("svg", "pdf", "png")) if figure else [])


class TableColumn(NamedTuple):
    heading: str
    text: Callable[[Cell, FinishedRuns], str]
    numbers: Callable[[Cell, FinishedRuns], dict[str, Any]]

    @classmethod
    def of(
        cls, heading: str, value: Callable[[Cell, FinishedRuns], Any], text: Callable[[Any], str] = str, name: str = ""
    ) -> TableColumn:
        """A column of one value per cell, which may be missing; `name` is its name in the CSV file."""
        return cls(
            heading,
            lambda cell, runs: MISSING if (number := value(cell, runs)) is None else text(number),
            lambda cell, runs: {name or heading: value(cell, runs)},
        )


def cell_table(
    heading: str,
    columns: Sequence[TableColumn],
    cells: Iterable[Cell],
    runs: FinishedRuns,
    further: Iterable[Sequence[str]] = (),
) -> str:
    """One row per cell, and further rows that are no cells. All columns but the command are numbers."""
    rows = [(cell.row, *(column.text(cell, runs) for column in columns)) for cell in cells]
    numbers = slice(1, -1 if columns[-1] is COMMAND else None)
    return markdown_table((heading, *(column.heading for column in columns)), [*rows, *further], numbers)


def _accuracy(cell: Cell, runs: FinishedRuns) -> str:
    if runs.group(cell) is None:
        return NOT_MEASURED if runs.scale.specs(cell, runs.seeds) else "not in the miniature"
    return spread(runs.summary(cell), 2)


def _seeds(cell: Cell, runs: FinishedRuns) -> dict[str, Any]:
    group = runs.group(cell)
    return {"seeds": len(group.runs) if group else 0, "diverged": len(group.diverged) if group else 0}


def summary_numbers(name: str, summary: Summary | None) -> dict[str, Any]:
    _, mean, deviation, half_width = summary or (0, None, None, None)
    return {name: mean, f"{name}: deviation": deviation, f"{name}: half of the 95 % interval": half_width}


def measure(heading: str, name: str, field: str, digits: int) -> TableColumn:
    return TableColumn(
        heading,
        lambda cell, runs: spread(runs.summary(cell, field), digits),
        lambda cell, runs: summary_numbers(name, runs.summary(cell, field)),
    )


def _forgetting(heading: str, field: str) -> TableColumn:
    column = measure(heading, field.replace("_", " "), field, 3)
    return column._replace(text=lambda cell, runs: forgetting_cell(runs.summary(cell, field)))


def _minus_paper(cell: Cell, runs: FinishedRuns) -> float | None:
    accuracy = None if runs.miniature else runs.summary(cell)
    return accuracy.mean - cell.published.accuracy if accuracy and cell.published else None


def forgetting_cell(forgetting: Summary | None) -> str:
    """With the interval by which it is judged."""
    text = spread(forgetting, 3)
    return text if forgetting is None or forgetting.half_width is None else f"{text} {interval(forgetting, 3)}"


def paper_text(paper: PaperResult | None) -> str:
    return MISSING if paper is None else spread(Summary(0, paper.accuracy, paper.deviation, None), 2)


def forgetting_text(paper: PaperResult | None) -> str:
    return MISSING if paper is None or paper.forgetting is None else f"{paper.forgetting:.2f}"


MEASURED = (
    TableColumn("seeds", lambda cell, runs: group.seed_count if (group := runs.group(cell)) else "0", _seeds),
    measure("accuracy %", "accuracy", "average_accuracy", 2)._replace(text=_accuracy),
    TableColumn("95 % interval", lambda cell, runs: interval(runs.summary(cell)), lambda _, __: {}),
    _forgetting("forgetting", "forgetting"),
    _forgetting("forgetting, last test too", "forgetting_with_last"),
)
FORGETTING_NOTE = (
    "Forgetting, with the 95 % interval of its mean: the highest accuracy on a task before the last test minus its "
    "last accuracy, averaged over old tasks; “last test too”: the highest of all tests, the last one included, as in "
    "the program of the paper's authors."
)
JUST_LEARNED = measure("just learned %", "just learned", "learning_accuracy", 2)
PAPER_COLUMNS = (
    TableColumn(
        "paper: accuracy %",
        lambda cell, _: paper_text(cell.published),
        lambda cell, _: {f"paper {name}": getattr(cell.published, name, None) for name in ("accuracy", "deviation")},
    ),
    TableColumn.of(
        "forgetting", lambda cell, _: cell.published and cell.published.forgetting, "{:.2f}".format, "paper forgetting"
    ),
    TableColumn.of("ours − paper", _minus_paper, "{:+.2f}".format, "accuracy minus paper"),
)
COMMAND = TableColumn.of("command", lambda cell, runs: None if runs.miniature else runs.command(cell), "`{}`".format)


def paired_difference(name: str, references: Iterable[Cell]) -> TableColumn:
    """The mean of the paired differences in accuracy, with its 95 % interval, to the reference of the same benchmark
    and recipe.
    """
    reference_of = {(cell.benchmark, cell.recipe): cell for cell in references}

    def difference(cell: Cell, runs: FinishedRuns) -> Summary | None:
        return runs.paired_difference(cell, reference_of[cell.benchmark, cell.recipe])

    def text(cell: Cell, runs: FinishedRuns) -> str:
        summary = difference(cell, runs)
        if summary is None or reference_of[cell.benchmark, cell.recipe].row == cell.row:
            return MISSING
        return f"{summary.mean:+.2f}" + ("" if summary.half_width is None else f" ± {summary.half_width:.2f}")

    return TableColumn(
        f"vs. {name}", text, lambda cell, runs: summary_numbers(f"accuracy vs. {name}", difference(cell, runs))
    )


class CellTables(Item):
    """Tables whose rows are cells: one per benchmark, its rows compared with a reference row and with the paper."""

    reference: str
    row_heading: str

    @property
    def legend(self) -> str:
        return (
            f"{SPREAD} The column “vs. {self.reference}” is the mean of the paired differences in accuracy to that "
            f"row, over the seeds that both have, with its 95 % interval. {FORGETTING_NOTE}"
        )

    def columns(self) -> Sequence[TableColumn]:
        """The columns of the CSV file."""
        references = [cell for cell in self.cells() if cell.row == self.reference]
        return [*MEASURED, paired_difference(self.reference, references), *PAPER_COLUMNS]

    def tables(self, runs: FinishedRuns) -> list[str]:
        """The tables in Markdown, with their headings."""
        columns: dict[str, list[Cell]] = {}
        for cell in self.cells():
            columns.setdefault(cell.column, []).append(cell)
        return [
            f"## {title}{runs.scale.suffix}\n\n{cell_table(self.row_heading, self.columns(), cells, runs)}"
            for title, cells in columns.items()
        ]

    def markdown(self, runs: FinishedRuns) -> str:
        return "\n".join([*(f"{table}\n" for table in self.tables(runs)), self.legend, ""])

    def rows(self, runs: FinishedRuns) -> list[dict[str, Any]]:
        columns = self.columns()
        return [
            {"benchmark": cell.column, "row": cell.row}
            | {name: number for column in columns for name, number in column.numbers(cell, runs).items()}
            for cell in self.cells()
        ]
