"""What tables show of a cell: text in Markdown, numbers in a CSV file."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from kcl.paper.cell import Cell, FinishedRuns
from kcl.report.formatting import MISSING, interval, markdown_table, seed_count, spread
from kcl.report.published import PaperResult
from kcl.report.summary import Summary

NOT_MEASURED = "not measured yet"
SPREAD = (
    "Mean ± sample standard deviation over seeds; 95 % confidence interval of the mean by Student's t; diverged runs "
    "are counted, not averaged."
)
FORGETTING_NOTE = (
    "Forgetting, with the 95 % interval of its mean: the highest accuracy on a task before the last test minus its "
    "last accuracy, averaged over old tasks; “last test too”: the highest of all tests, the last one included, as in "
    "the program of the paper's authors."
)
COST_NOTE = (
    "Bytes kept: samples and everything else that a method keeps of its tasks; average: the averaged weights, which "
    "are kept beside the network. Images per sample: images that pass the backbone during training for each training "
    "sample of the stream. This is counted exactly and is the same on every machine: a batch and the coreset or the "
    "replayed samples beside it, in all rotations, in every update. Images per query: the number of views in which a "
    "query is shown. Seconds per run: training on one GPU, as the share of one run among those trained together, "
    "whatever else the GPU did at the time; “cpu” where it was one core instead."
)


@dataclass(frozen=True)
class Column:
    """A value of every cell, and its text; None is shown as missing.

    In the CSV file it has the column `name` (default: the heading), or one for each item if it is a dictionary.
    """

    heading: str
    value: Callable[[Cell, FinishedRuns], Any]
    show: Callable[[Any], str] = str
    name: str = ""

    def text(self, cell: Cell, runs: FinishedRuns) -> str:
        value = self.value(cell, runs)
        return MISSING if value is None else self.show(value)

    def numbers(self, cell: Cell, runs: FinishedRuns) -> dict[str, Any]:
        value = self.value(cell, runs)
        return value if isinstance(value, dict) else {self.name or self.heading: value}


class SummaryColumn(Column):
    """A `Summary`, which has three columns in the CSV file."""

    def numbers(self, cell: Cell, runs: FinishedRuns) -> dict[str, Any]:
        _, *numbers = self.value(cell, runs) or (0, None, None, None)
        names = (self.name, f"{self.name}: deviation", f"{self.name}: half of the 95 % interval")
        return dict(zip(names, numbers, strict=True))


class AccuracyColumn(SummaryColumn):
    """Says why there is no accuracy."""

    def text(self, cell: Cell, runs: FinishedRuns) -> str:
        if runs.of(cell):
            return super().text(cell, runs)
        return NOT_MEASURED if runs.scale.specs(cell, runs.seeds) else "not in the miniature"


def measure(heading: str, name: str, field: str, digits: int) -> SummaryColumn:
    """A field of the results over seeds."""
    return SummaryColumn(heading, lambda cell, runs: runs.summary(cell, field), lambda mean: spread(mean, digits), name)


def forgetting(heading: str, field: str) -> SummaryColumn:
    """With the interval by which it is judged."""

    def show(summary: Summary) -> str:
        text = spread(summary, 3)
        return text if summary.half_width is None else f"{text} {interval(summary, 3)}"

    return SummaryColumn(heading, lambda cell, runs: runs.summary(cell, field), show, field.replace("_", " "))


def paired_difference(name: str, references: Iterable[Cell]) -> SummaryColumn:
    """The mean of the paired differences in accuracy to the reference of the same benchmark and recipe."""
    reference_of = {(cell.benchmark, cell.recipe): cell for cell in references}

    class Difference(SummaryColumn):
        def text(self, cell: Cell, runs: FinishedRuns) -> str:
            is_reference = reference_of[cell.benchmark, cell.recipe].row == cell.row
            return MISSING if is_reference else super().text(cell, runs)

    return Difference(
        f"vs. {name}",
        lambda cell, runs: runs.paired_difference(cell, reference_of[cell.benchmark, cell.recipe]),
        lambda mean: f"{mean.mean:+.2f}" + ("" if mean.half_width is None else f" ± {mean.half_width:.2f}"),
        f"accuracy vs. {name}",
    )


def paper_accuracy(paper: PaperResult) -> str:
    return spread(Summary(0, paper.accuracy, paper.deviation, None), 2)


def _seeds(cell: Cell, runs: FinishedRuns) -> dict[str, int]:
    group = runs.group(cell)
    return {"seeds": len(group.runs) if group else 0, "diverged": len(group.diverged) if group else 0}


def _minus_paper(cell: Cell, runs: FinishedRuns) -> float | None:
    accuracy = None if runs.miniature else runs.summary(cell)
    return accuracy.mean - cell.published.accuracy if accuracy and cell.published else None


def _cost(heading: str, show: Callable[[Any], str], name: str = "") -> Column:
    return Column(heading, lambda cell, runs: runs.cost(cell).get(name or heading), show, name)


def _seconds(cost: dict[str, Any]) -> str:
    seconds = cost["seconds per run"]
    if seconds is None:
        return MISSING
    return f"{seconds:.{0 if seconds >= 10 else 1}f}" + (" (cpu)" if cost["device"] == "cpu" else "")


MEASURED = (
    Column("seeds", _seeds, lambda count: seed_count(*count.values())),
    AccuracyColumn("accuracy %", lambda cell, runs: runs.summary(cell), lambda summary: spread(summary, 2), "accuracy"),
    SummaryColumn("95 % interval", lambda cell, runs: runs.summary(cell), interval, "accuracy"),
    forgetting("forgetting", "forgetting"),
    forgetting("forgetting, last test too", "forgetting_with_last"),
)
JUST_LEARNED = measure("just learned %", "just learned", "learning_accuracy", 2)
PAPER_FORGETTING = Column(
    "forgetting", lambda cell, _: cell.published and cell.published.forgetting, "{:.2f}".format, "paper forgetting"
)
PAPER = (
    Column(
        "paper: accuracy %",
        lambda cell, _: {f"paper {name}": getattr(cell.published, name, None) for name in ("accuracy", "deviation")},
        lambda paper: MISSING if paper["paper accuracy"] is None else paper_accuracy(PaperResult(*paper.values())),
    ),
    PAPER_FORGETTING,
    Column("ours − paper", _minus_paper, "{:+.2f}".format, "accuracy minus paper"),
)
IMAGES_PER_SAMPLE = _cost("images per sample", "{:.2f}".format)
COST = (
    _cost("bytes kept", "{:,}".format),
    _cost("average", lambda size: f"{size:,}" if size else MISSING, "bytes of the average"),
    IMAGES_PER_SAMPLE,
    _cost("images per query", str),
    Column(
        "seconds per run",
        lambda cell, runs: {name: runs.cost(cell).get(name) for name in ("seconds per run", "device")},
        _seconds,
    ),
)
COMMAND = Column("command", lambda cell, runs: None if runs.miniature else runs.command(cell), "`{}`".format)


def cell_table(
    heading: str,
    columns: Sequence[Column],
    cells: Iterable[Cell],
    runs: FinishedRuns,
    further: Iterable[Sequence[str]] = (),
) -> str:
    """One row per cell, and further rows that are no cells. All columns but the command are numbers."""
    rows = [(cell.row, *(column.text(cell, runs) for column in columns)) for cell in cells]
    numbers = slice(1, -1 if columns[-1] is COMMAND else None)
    return markdown_table((heading, *(column.heading for column in columns)), [*rows, *further], numbers)
