"""Beyond the paper: the methods that replay, with as many stored samples as KCL; the searches for their settings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

from kcl.methods.recipes import find_method
from kcl.methods.strong_recipe import recipe_settings
from kcl.paper.cell import Cell, FinishedRuns
from kcl.paper.columns import COMMAND, COST, COST_NOTE, Column
from kcl.paper.item import Part
from kcl.paper.strong_results import ALL_FOUR, LEARNED, LONGER_RAMPS, STRONG_MEASURED, StrongTables
from kcl.report.published import CIFAR100, MINIIMAGENET

CONTENDERS = {"er-reservoir": "ER-Reservoir", "a-gem": "A-GEM", "multi-task": "joint training"}
RECIPES = {"strong": "strong recipe", "paper": "the paper's recipe"}
TUNED: dict[tuple[str, str, str], Mapping[str, Any]] = {}
"""What the searches chose, by benchmark, method and recipe: what differs from the recipe's own values. A test compares
it with the committed searches (results/tuning/equal-memory); what is not here has not been searched."""

_SGD = "lr=0.01,0.03,0.1 momentum=0.0,0.8"
_MUON = "muon_lr=0.0025,0.005,0.01 lr=0.01,0.03,0.1"


def memory_of_kcl(benchmark: str, method: str) -> dict[str, int]:
    """The setting that gives a method as many samples as KCL has; empty for one whose memory has no size."""
    setting = find_method(method).memory_setting
    return {setting: recipe_settings("paper", benchmark, "kcl").coreset_size_per_class} if setting else {}


def contender(benchmark: str, method: str, recipe: str) -> Cell:
    changes = memory_of_kcl(benchmark, method) | dict(TUNED.get((benchmark, method, recipe), {}))
    return Cell(f"{CONTENDERS[method]}, {RECIPES[recipe]}", benchmark, method, changes, recipe=recipe)


def search_name(benchmark: str, method: str, recipe: str) -> str:
    """The search's folder, and its file in results/tuning/equal-memory."""
    return f"{benchmark}-{method}-{recipe}"


def search_command(benchmark: str, method: str, recipe: str) -> str:
    """The search for a method's settings at KCL's memory, by the protocol by which KCL's were searched."""
    settings, split = recipe_settings(recipe, benchmark, method), benchmark in (CIFAR100, MINIIMAGENET)
    space = [_MUON if settings.optimizer == "muon" else _SGD]
    space += [f"average_ramp={LONGER_RAMPS[benchmark]},5.0,9.0"] if settings.weight_average else []
    memory = memory_of_kcl(benchmark, method)
    folder = search_name(benchmark, method, recipe)
    words = [f"kcl tune {benchmark} --method {method} --recipe {recipe} --judge-by old"]
    words += ["--held-out 0.2"] if split else []
    words += ["--seeds 100..102 --final-seeds none --trials 500 --trials-at-once 500"]
    words += [f"--set {name}={value}" for name, value in memory.items()]
    words += ["--search", *space, *(["recalled_per_step=10,32"] if memory else [])]
    return " ".join([*words, f"--out runs/tuning/equal-memory/{folder}"])


def _tuned(cell: Cell, _: FinishedRuns) -> str:
    if cell.method not in CONTENDERS:
        return "as published" if cell.recipe == "paper" else "docs/strong-search.md"
    chosen = TUNED.get((cell.benchmark, cell.method, cell.recipe))
    if chosen is None:
        return "not searched"
    return " ".join(f"{name}={value}" for name, value in chosen.items()) or "the recipe's values"


class EqualMemory(StrongTables):
    name = "equal-memory"
    title = "Methods that replay, with as many samples as KCL"
    note = (
        "ER-Reservoir and A-GEM with KCL's memory, in samples: 20 per class and task, 30 on Split miniImageNet; joint "
        "training, which sees all samples at once, as a bound. With the paper's recipe and with the strong one. "
        "Settings: those of the recipe, unless a search by KCL's own protocol chose others; `--dry-run` prints the "
        "searches."
    )
    benchmarks: ClassVar[Sequence[str]] = ALL_FOUR
    legend = f"{LEARNED} {COST_NOTE} Settings: what a search chose in place of the recipe's values."

    def rows_of(self, benchmark: str) -> list[Cell]:
        return [cell for recipe in RECIPES for cell in self.with_recipe(benchmark, recipe)]

    def with_recipe(self, benchmark: str, recipe: str) -> list[Cell]:
        """KCL and the methods that it is compared with."""
        kcl = Cell(f"KCL, {RECIPES[recipe]}", benchmark, recipe=recipe)
        return [kcl, *(contender(benchmark, method, recipe) for method in CONTENDERS)]

    def searches(self) -> list[str]:
        others = [cell for cell in self.cells() if cell.method in CONTENDERS]
        return [search_command(cell.benchmark, cell.method, cell.recipe) for cell in others]

    def columns(self) -> Sequence[Column]:
        return (*STRONG_MEASURED, *COST, Column("settings", _tuned), COMMAND)

    shown_columns = columns

    def parts(self, runs: FinishedRuns) -> list[Part]:
        def marked(cell: Cell) -> Cell:
            return replace(cell, row=f"**{cell.row}**") if cell.method == "kcl" else cell

        return [part._replace(cells=[marked(cell) for cell in part.cells]) for part in super().parts(runs)]


class ShuffledClasses(EqualMemory):
    name = "strong-shuffled"
    title = "The same with classes shuffled"
    note = (
        "The split benchmarks with their classes divided among the tasks anew for every seed, otherwise as in "
        "equal-memory: whether what was measured holds for other tasks than those of the datasets' own order of "
        "classes."
    )
    benchmarks = (CIFAR100, MINIIMAGENET)

    def rows_of(self, benchmark: str) -> list[Cell]:
        return [replace(cell, class_order="shuffled") for cell in super().rows_of(benchmark)]

    def searches(self) -> list[str]:
        return []
