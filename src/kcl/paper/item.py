"""What every table and figure of the paper offers, and where its finished runs are found."""

from __future__ import annotations

import csv
import io
import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from kcl.benchmarks.registry import find_benchmark
from kcl.benchmarks.ways import DEFAULT_WAYS
from kcl.core.files import write_whole
from kcl.experiments.run_spec import RunSpec, key_of, with_current_settings
from kcl.paper.cell import Cell, Scale
from kcl.report import figures
from kcl.report.groups import Group, group_runs

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class Found:
    """The finished runs of the cells, as far as there are any, and the folders that hold what was measured."""

    def __init__(
        self,
        records: Iterable[Mapping[str, Any]],
        scale: Scale,
        seeds: Sequence[int],
        folders: Sequence[Path] = (),
    ) -> None:
        self.scale, self.seeds, self.folders = scale, seeds, folders
        self._records = {_identity(json.loads(key_of(record))): with_current_settings(record) for record in records}

    def run(self, spec: RunSpec) -> dict[str, Any] | None:
        """The run asked for, where it is finished."""
        return self._records.get(_identity(json.loads(spec.key)))

    def runs(self, cell: Cell) -> list[dict[str, Any]]:
        runs = (self.run(spec) for spec in self.scale.specs(cell, self.seeds))
        return [run for run in runs if run is not None]

    def group(self, cell: Cell) -> Group | None:
        """The runs of a cell together; None where none is finished."""
        runs = self.runs(cell)
        return group_runs(runs)[0] if runs else None


def _identity(fields: dict[str, Any]) -> str:
    """What a run is, said in the same way before it is done and after, when the data have decided the rest."""
    benchmark = find_benchmark(fields["benchmark"])
    if "ways" in benchmark.stream_choices:
        fields |= {"ways": fields["ways"] or DEFAULT_WAYS, "class_order": fields["class_order"] or "fixed"}
    varied = isinstance(fields["ways"], list)
    fields |= {"tasks": None if varied else fields["tasks"] or benchmark.tasks, "data": None}
    return json.dumps(fields, sort_keys=True)


class Measuring(NamedTuple):
    """How to measure what no run tells: on which device, and in which folder it is kept."""

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
    """Where it stands in the paper."""
    title: ClassVar[str]
    note: ClassVar[str] = ""
    """What must be known to read ours beside the paper's."""
    miniature: ClassVar[str] = ""
    """What its miniature does without, besides."""
    judged: ClassVar[bool] = True
    """Whether it is one of the paper's, whose numbers are held against what it prints."""

    @abstractmethod
    def cells(self) -> Sequence[Cell]:
        """All runs it needs."""

    def specs(self, scale: Scale, seeds: Sequence[int]) -> list[RunSpec]:
        cells = [own for cell in self.cells() for own in (cell, cell.nearer) if own is not None]
        return [spec for cell in cells for spec in scale.specs(cell, seeds)]

    def measure(self, asked: Measuring) -> None:  # noqa: B027 - most have nothing to measure
        """Measure what no run tells."""

    @abstractmethod
    def markdown(self, found: Found) -> str:
        """The table in Markdown."""

    @abstractmethod
    def rows(self, found: Found) -> list[dict[str, Any]]:
        """The same numbers for a CSV file."""

    def figure(self, found: Found) -> Figure | None:  # noqa: ARG002
        """The drawing, where the paper has one."""
        return None

    def write(self, found: Found, out: Path) -> list[Path]:
        """table.md, table.csv and, where there is one and matplotlib too, the figure as SVG, PDF and PNG."""
        folder = out / self.name
        folder.mkdir(parents=True, exist_ok=True)
        place = f"{self.place} of the paper" if self.judged else self.place
        heading = f"# {self.title}\n\n{place}. `kcl reproduce {self.name}`\n"
        small = (found.scale.note, self.miniature) if found.scale.note else ()
        notes = [note for note in (*small, self.note) if note]
        text = "\n".join([heading, *(f"{note}\n" for note in notes), self.markdown(found)])
        write_whole(folder / "table.md", text.encode())
        write_whole(folder / "table.csv", _csv(self.rows(found)).encode())
        written = [folder / "table.md", folder / "table.csv"]
        figure = self.figure(found) if figures.available() else None
        if figure is not None:
            for kind in ("svg", "pdf", "png"):
                write_whole(folder / f"figure.{kind}", figures.render(figure, kind))
                written.append(folder / f"figure.{kind}")
        return written


def _csv(rows: Sequence[Mapping[str, Any]]) -> str:
    file = io.StringIO()
    writer = csv.DictWriter(file, list(rows[0]) if rows else [], lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return file.getvalue()
