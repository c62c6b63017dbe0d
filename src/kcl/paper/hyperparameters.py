"""The hyperparameters, generated from the defaults this code runs with."""

from __future__ import annotations

from typing import Any

from kcl.benchmarks.registry import find_benchmark
from kcl.methods.recipes import published_settings
from kcl.paper.cell import CIFAR100, MINIIMAGENET, PERMUTED, ROTATED, TITLES, Cell
from kcl.paper.item import Found, Item

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
"""The setting that holds each, and what the paper prints for the four benchmarks."""
BENCHMARKS = (PERMUTED, ROTATED, CIFAR100, MINIIMAGENET)


class Hyperparameters(Item):
    name = "hyperparameters"
    place = "The appendix's table"
    title = "Hyperparameters of KCL"
    note = "Read from the settings this code runs with. The paper's value stands in brackets where it differs."

    def cells(self) -> list[Cell]:
        return []

    def rows(self, found: Found) -> list[dict[str, Any]]:  # noqa: ARG002
        made = []
        for row, (setting, paper) in ROWS.items():
            own = [self._value(benchmark, setting) for benchmark in BENCHMARKS]
            ours = {TITLES[benchmark]: value for benchmark, value in zip(BENCHMARKS, own, strict=True)}
            printed = {f"{TITLES[b]}: paper": value for b, value in zip(BENCHMARKS, paper, strict=True)}
            made.append({"hyperparameter": row, **ours, **printed})
        return made

    def _value(self, benchmark: str, setting: str) -> Any:
        if setting == "tasks":
            return find_benchmark(benchmark).tasks
        return getattr(published_settings(benchmark, "kcl"), setting)

    def markdown(self, found: Found) -> str:
        titles = [TITLES[benchmark] for benchmark in BENCHMARKS]
        lines = [("hyperparameter", *titles), ("---", *["---:"] * len(titles))]
        for row in self.rows(found):
            shown = [
                str(row[title]) if row[title] == row[f"{title}: paper"] else f"{row[title]} ({row[f'{title}: paper']})"
                for title in titles
            ]
            lines.append((row["hyperparameter"], *shown))
        return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"
