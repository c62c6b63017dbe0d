"""A cell of a table or a point of a figure: runs that differ only in their seed, and what the paper prints for them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from kcl.benchmarks.ways import Ways
from kcl.experiments.run_spec import RunSpec
from kcl.methods.recipes import published_settings
from kcl.methods.strong_recipe import strong_changes
from kcl.report.published import BENCHMARK_TITLES, CIFAR100, MINIIMAGENET, PERMUTED, ROTATED, PaperResult


@dataclass(frozen=True)
class Cell:
    """`row` and `column` are its place in a table. Settings that are not changed are those of the recipe."""

    row: str
    benchmark: str
    method: str = "kcl"
    changes: Mapping[str, Any] = field(default_factory=dict)
    ways: Ways | None = None
    published: PaperResult | None = None
    recipe: str = "paper"
    train_per_task: int | None = None
    nearer: Cell | None = None
    """The same cell with settings nearer to those of the program behind the printed number, where ours differ."""

    @property
    def column(self) -> str:
        return BENCHMARK_TITLES[self.benchmark]


class Scale(NamedTuple):
    """The size of the reproduction: the paper's, or a miniature on other data."""

    note: str
    stand_ins: Mapping[str, str]
    tasks: int | None
    ways: Mapping[Ways | None, Ways | None]
    unsupported: Sequence[str] = ()
    """Settings that its data do not allow: recipes go without them, and cells that change one have no runs."""

    @property
    def suffix(self) -> str:
        """What a miniature's table adds to its title."""
        return ", in miniature" if self.note else ""

    def specs(self, cell: Cell, seeds: Sequence[int]) -> list[RunSpec]:
        if any(name in self.unsupported for name in cell.changes) or (self.stand_ins and cell.train_per_task):
            return []
        benchmark = self.stand_ins.get(cell.benchmark, cell.benchmark)
        recipe = strong_changes(cell.benchmark, cell.method) if cell.recipe == "strong" else {}
        changes = {name: value for name, value in recipe.items() if name not in self.unsupported} | dict(cell.changes)
        settings = published_settings(benchmark, cell.method).replace(**changes)
        split = cell.benchmark in (CIFAR100, MINIIMAGENET)
        ways = self.ways.get(cell.ways, cell.ways) if split else None
        tasks = None if isinstance(ways, tuple) else self.tasks
        return [
            RunSpec(benchmark, cell.method, seed, settings, tasks, cell.train_per_task, ways=ways) for seed in seeds
        ]


FULL = Scale("", {}, None, {})
QUICK = Scale(
    "A miniature, which says nothing about the paper's numbers: scikit-learn's 8×8 digits in place of MNIST, CIFAR-100 "
    "and miniImageNet, an MLP in place of the ResNets, 3 tasks. Where classes are split, a task has 2 of them (2 to 4 "
    "in place of 3 to 15, 4 tasks in place of 20).",
    {
        PERMUTED: "permuted-digits",
        ROTATED: "rotated-digits",
        CIFAR100: "split-digits",
        MINIIMAGENET: "split-digits",
    },
    3,
    {None: 2, (3, 15): (2, 4), (3, 15, 20): (2, 4, 4)},
    ("rotation_labels", "test_views", "augmentation", "batch_norm", "feature_stages", "backbone"),
)
