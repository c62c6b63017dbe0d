"""The hyperparameters, read from the settings that this code runs with."""

from __future__ import annotations

from typing import Any

from kcl.benchmarks.registry import find_benchmark
from kcl.methods.recipes import published_settings
from kcl.paper.cell import Cell
from kcl.paper.finished_runs import FinishedRuns
from kcl.paper.item import Item
from kcl.report.formatting import markdown_table
from kcl.report.published import BENCHMARK_TITLES

ROWS = {
    "batch size": ("batch_size", (10, 10, 10, 10)),
    "learning rate": ("lr", (0.1, 0.1, 0.3, 0.3)),
    "learning-rate decay": ("lr_decay", (0.8, 0.8, 0.95, 0.95)),
    "momentum": ("momentum", (0.8, 0.8, 0.8, 0.8)),
    "dropout": ("dropout", (0.5, 0.5, 0.02, 0.02)),
    "coreset size (per class)": ("coreset_size_per_class", (20, 20, 20, 30)),
    "number of bases": ("bases", (1024, 1024, 2048, 2048)),
    "number of tasks": ("tasks", (20, 20, 20, 20)),
    "τ": ("tau", (0.01, 0.01, 0.01, 0.01)),
}
"""The setting behind each row, and the values that the paper prints for the four benchmarks."""


class Hyperparameters(Item):
    name = "hyperparameters"
    place = "The appendix's table"
    title = "Hyperparameters of KCL"
    note = "Read from the settings that this code runs with. The paper's value follows in brackets where it differs."

    def cells(self) -> list[Cell]:
        return []

    def rows(self, runs: FinishedRuns) -> list[dict[str, Any]]:  # noqa: ARG002
        rows = []
        for name, (setting, printed) in ROWS.items():
            ours = {title: _value(benchmark, setting) for benchmark, title in BENCHMARK_TITLES.items()}
            paper = {f"{title}: paper": value for title, value in zip(ours, printed, strict=True)}
            rows.append({"hyperparameter": name, **ours, **paper})
        return rows

    def markdown(self, runs: FinishedRuns) -> str:
        def text(row: dict[str, Any], title: str) -> str:
            ours, paper = row[title], row[f"{title}: paper"]
            return str(ours) if ours == paper else f"{ours} ({paper})"

        titles = BENCHMARK_TITLES.values()
        rows = [(row["hyperparameter"], *(text(row, title) for title in titles)) for row in self.rows(runs)]
        return markdown_table(("hyperparameter", *titles), rows) + "\n"


def _value(benchmark: str, setting: str) -> Any:
    if setting == "tasks":
        return find_benchmark(benchmark).tasks
    return getattr(published_settings(benchmark, "kcl"), setting)
