"""The finished runs, looked up by the cell of a table or figure that they belong to."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from kcl.benchmarks.registry import find_benchmark
from kcl.benchmarks.ways import DEFAULT_WAYS, show_ways
from kcl.experiments.run_spec import RunSpec, with_current_settings
from kcl.methods.strong_recipe import recipe_settings
from kcl.paper.cell import Cell, Scale
from kcl.report.groups import SeedGroup, group_runs
from kcl.report.summary import Summary, summarise


class FinishedRuns:
    """Finished runs at one scale, and the folders with other measurements."""

    def __init__(
        self,
        records: Iterable[Mapping[str, Any]],
        scale: Scale,
        seeds: Sequence[int],
        folders: Sequence[Path] = (),
    ) -> None:
        self.scale, self.seeds, self.folders = scale, seeds, folders
        self.miniature = bool(scale.note)
        self._records = {_identity(RunSpec.from_fields(record)): with_current_settings(record) for record in records}

    def find(self, spec: RunSpec) -> dict[str, Any] | None:
        """The record of a run; None if it is not finished."""
        return self._records.get(_identity(spec))

    def of(self, cell: Cell) -> list[dict[str, Any]]:
        records = (self.find(spec) for spec in self.scale.specs(cell, self.seeds))
        return [record for record in records if record is not None]

    def group(self, cell: Cell) -> SeedGroup | None:
        """The runs of a cell under the name of its row; None if none is finished."""
        records = self.of(cell)
        return replace(group_runs(records)[0], label=cell.row) if records else None

    def summary(self, cell: Cell, field: str = "average_accuracy") -> Summary | None:
        """A field over the seeds; None without a run that has it."""
        group = self.group(cell)
        return group.summary(field) if group else None

    def paired_difference(self, cell: Cell, reference: Cell) -> Summary | None:
        """Accuracy minus the reference's, seed by seed, over the seeds that both have."""
        others = {record["seed"]: record["average_accuracy"] for record in self.of(reference)}
        pairs = [(record["average_accuracy"], others.get(record["seed"])) for record in self.of(cell)]
        return summarise([ours - other for ours, other in pairs if ours is not None and other is not None])

    def command(self, cell: Cell) -> str:
        """The command for a cell's runs, with the precision in which they were done."""
        words = ["kcl run", cell.benchmark]
        words += [] if cell.method == "kcl" else ["--method", cell.method]
        words += [] if cell.recipe == "paper" else ["--recipe", cell.recipe]
        recipe = recipe_settings(cell.recipe, cell.benchmark, cell.method)
        changes = {name: value for name, value in cell.changes.items() if getattr(recipe, name) != value}
        words += ["--kernel", changes.pop("kernel")] if "kernel" in changes else []
        words += change_options(replace(cell, changes=changes))
        words += ["--ways", show_ways(cell.ways)] if cell.ways is not None else []
        first, last = self.seeds[0], self.seeds[-1]
        consecutive = list(self.seeds) == list(range(first, last + 1))
        words += ["--seeds", f"{first}..{last}" if consecutive else ",".join(map(str, self.seeds))]
        records = self.of(cell)
        if records and records[0]["device"] != "cpu" and records[0]["precision"] != "tf32":
            words += ["--precision", records[0]["precision"]]
        return " ".join(words)


def change_options(cell: Cell) -> list[str]:
    """The options for what a cell changes in its recipe."""
    words = [f"--set {name}={value}" for name, value in cell.changes.items()]
    return words + ([] if cell.train_per_task is None else [f"--train-per-task {cell.train_per_task}"])


def _identity(spec: RunSpec) -> RunSpec:
    """The same for a run that was requested and for its record, in which the benchmark's choices are filled in."""
    benchmark = find_benchmark(spec.benchmark)
    if "ways" in benchmark.stream_choices:
        spec = replace(spec, ways=spec.ways or DEFAULT_WAYS, class_order=spec.class_order or "fixed")
    return replace(spec, tasks=None if isinstance(spec.ways, tuple) else spec.tasks or benchmark.tasks, data=None)
