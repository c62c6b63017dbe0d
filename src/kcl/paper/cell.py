"""A cell of a table or a point of a figure: runs that differ in their seed only, and what the paper prints of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from kcl.benchmarks.ways import Ways
from kcl.experiments.run_spec import RunSpec
from kcl.methods.recipes import published_settings
from kcl.methods.strong_recipe import strong_changes

PERMUTED, ROTATED = "permuted-mnist", "rotated-mnist"
CIFAR100, MINIIMAGENET = "split-cifar100", "split-miniimagenet"
TITLES = {
    PERMUTED: "Permuted MNIST",
    ROTATED: "Rotated MNIST",
    CIFAR100: "Split CIFAR-100",
    MINIIMAGENET: "Split miniImageNet",
}


class Published(NamedTuple):
    """Average accuracy in percent and forgetting, with their standard deviations where they are printed."""

    accuracy: float
    deviation: float | None = None
    forgetting: float | None = None


@dataclass(frozen=True)
class Cell:
    """`row` and `column` say where it stands; everything that is not said is as the recipe has it for the benchmark."""

    row: str
    benchmark: str
    method: str = "kcl"
    changes: Mapping[str, Any] = field(default_factory=dict)
    ways: Ways | None = None
    published: Published | None = None
    recipe: str = "paper"
    train_per_task: int | None = None
    nearer: Cell | None = None
    """The same with settings nearer to those of the program behind the printed number, where ours are not the same."""

    @property
    def column(self) -> str:
        return TITLES[self.benchmark]


class Scale(NamedTuple):
    """How large the reproduction is: the paper's, or a miniature with other data in place of the paper's."""

    note: str
    stand_ins: Mapping[str, str]
    tasks: int | None
    ways: Mapping[Ways | None, Ways | None]
    lacks: Sequence[str] = ()
    """Settings that do not go with its data: a recipe does without them, a cell that is about one has no runs."""

    def specs(self, cell: Cell, seeds: Sequence[int]) -> list[RunSpec]:
        if any(name in self.lacks for name in cell.changes) or (self.stand_ins and cell.train_per_task):
            return []
        benchmark = self.stand_ins.get(cell.benchmark, cell.benchmark)
        recipe = strong_changes(cell.benchmark, cell.method) if cell.recipe == "strong" else {}
        changes = {name: value for name, value in recipe.items() if name not in self.lacks} | dict(cell.changes)
        settings = published_settings(benchmark, cell.method).replace(**changes)
        split = cell.benchmark in (CIFAR100, MINIIMAGENET)
        ways = self.ways.get(cell.ways, cell.ways) if split else None
        tasks = None if isinstance(ways, tuple) else self.tasks
        few = cell.train_per_task
        return [RunSpec(benchmark, cell.method, seed, settings, tasks, few, ways=ways) for seed in seeds]


FULL = Scale("", {}, None, {})
QUICK = Scale(
    "A miniature, which says nothing about the paper's numbers: scikit-learn's 8×8 digits in place of MNIST, CIFAR-100 "
    "and miniImageNet, an MLP in place of the ResNets, 3 tasks, tasks of 2 classes (2 to 4 in place of 3 to 15, 4 "
    "tasks in place of 20) where classes are split.",
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
