"""A cell of a table or a point of a figure: runs that differ only in their seed, and what the paper prints for them.

Its runs follow from a `Scale`; `FinishedRuns` looks up their results, what they cost, and the command that does them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

from kcl.benchmarks.registry import find_benchmark
from kcl.benchmarks.ways import DEFAULT_WAYS, Ways, show_ways
from kcl.core.metrics import METRICS, AccuracyMatrix
from kcl.experiments.run_spec import RunSpec, with_current_settings
from kcl.methods.recipes import published_settings
from kcl.methods.strong_recipe import recipe_changes, recipe_settings
from kcl.methods.training_compute import Shape, TrainingCompute, training_compute
from kcl.methods.views import copies_at_test
from kcl.report.groups import SeedGroup, group_runs
from kcl.report.published import BENCHMARK_TITLES, CIFAR100, MINIIMAGENET, PERMUTED, ROTATED, PaperResult
from kcl.report.summary import Summary, summarise


@dataclass(frozen=True)
class Cell:
    """`row` and `column` are its place in a table. Settings that are not changed are those of the recipe."""

    row: str
    benchmark: str
    method: str = "kcl"
    changes: Mapping[str, Any] = field(default_factory=dict)
    ways: Ways | None = None
    class_order: str | None = None
    published: PaperResult | None = None
    recipe: str = "paper"
    train_per_task: int | None = None
    tasks: int | None = None
    """Where they are fewer than the benchmark's."""
    nearer: Cell | None = None
    """The same cell with settings nearer to those of the program behind the printed number, where ours differ."""

    @property
    def column(self) -> str:
        """The benchmark, and what differs from it in the whole table."""
        parts = [BENCHMARK_TITLES[self.benchmark]]
        parts += [f"{self.tasks} tasks"] if self.tasks else []
        parts += [f"{self.ways} classes per task"] if isinstance(self.ways, int) else []
        parts += [f"{self.train_per_task:,} samples per task"] if self.train_per_task else []
        return ", ".join(parts)


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
        recipe = recipe_changes(cell.recipe, cell.benchmark, cell.method)
        changes = {name: value for name, value in recipe.items() if name not in self.unsupported} | dict(cell.changes)
        settings = published_settings(benchmark, cell.method).replace(**changes)
        split = cell.benchmark in (CIFAR100, MINIIMAGENET)
        ways = self.ways.get(cell.ways, cell.ways) if split else None
        tasks = None if isinstance(ways, tuple) else self.tasks or cell.tasks
        return [
            RunSpec(benchmark, cell.method, seed, settings, tasks, cell.train_per_task, ways, cell.class_order)
            for seed in seeds
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
    {None: 2, 10: 3, (3, 15): (2, 4), (3, 15, 20): (2, 4, 4)},
    ("rotation_labels", "test_views", "augmentation", "batch_norm", "feature_stages", "backbone"),
)


SAMPLES_PER_CLASS = 500
"""Training samples of a class of CIFAR-100 and miniImageNet."""
DIGIT_SAMPLES = (143, 146, 142, 147, 145, 146, 145, 144, 140, 144)
"""Training samples of each of scikit-learn's digits."""


def task_shapes(spec: RunSpec) -> list[Shape]:
    """The sizes of a run's tasks, known without their data; varied ways are counted as fixed ones."""
    ways = spec.ways if isinstance(spec.ways, int) else DEFAULT_WAYS
    if spec.benchmark in (PERMUTED, ROTATED):
        return [Shape(spec.train_per_task or 60_000, 10)] * (spec.tasks or 20)
    if spec.benchmark in (CIFAR100, MINIIMAGENET):
        return [Shape(spec.train_per_task or SAMPLES_PER_CLASS * ways, ways)] * (spec.tasks or 100 // ways)
    if spec.benchmark == "split-digits":
        starts = range(0, ways * (spec.tasks or 2), ways)
        return [Shape(sum(DIGIT_SAMPLES[start : start + ways]), ways) for start in starts]
    return [Shape(sum(DIGIT_SAMPLES), 10)] * (spec.tasks or 20)


def run_compute(spec: RunSpec) -> TrainingCompute:
    return training_compute(spec.method, spec.settings, task_shapes(spec))


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
        self._records = {_identity(RunSpec.from_fields(record)): _current(record) for record in records}

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

    def cost(self, cell: Cell) -> dict[str, Any]:
        """Of one run. Only images where no run is finished, and nothing where the scale has no runs."""
        specs, records = self.scale.specs(cell, self.seeds[:1]), self.of(cell)
        if not specs:
            return {}
        cost: dict[str, Any] = {
            "images per sample": run_compute(specs[0]).images_per_sample,
            "images per query": copies_at_test(specs[0].settings),
        }
        if records:
            memory = records[0]["memory"]
            shares = [sum(record["learning_seconds"]) / record.get("runs_at_once", 1) for record in records]
            cost |= {"bytes kept": memory["bytes"], "bytes of the average": memory.get("average_bytes", 0)}
            cost |= {"seconds per run": fmean(shares), "device": records[0].get("device")}
        return cost

    def command(self, cell: Cell) -> str:
        """The command for a cell's runs, with the precision in which they were done."""
        recipe, records = recipe_settings(cell.recipe, cell.benchmark, cell.method), self.of(cell)
        changes = {name: value for name, value in cell.changes.items() if getattr(recipe, name) != value}
        seeds = [record["seed"] for record in records] or list(self.seeds)
        consecutive = len(seeds) > 2 and seeds == list(range(seeds[0], seeds[-1] + 1))
        other_precision = records and records[0]["device"] != "cpu" and records[0]["precision"] != "tf32"
        before = {
            "method": None if cell.method == "kcl" else cell.method,
            "recipe": None if cell.recipe == "paper" else cell.recipe,
            "kernel": changes.pop("kernel", None),
            "scenario": changes.pop("scenario", None),
        }
        after = {
            "tasks": cell.tasks,
            "ways": None if cell.ways is None else show_ways(cell.ways),
            "class-order": cell.class_order,
            "seeds": f"{seeds[0]}..{seeds[-1]}" if consecutive else ",".join(map(str, seeds)),
            "precision": records[0]["precision"] if other_precision else None,
        }
        words = [_options(before), *change_options(replace(cell, changes=changes)), _options(after)]
        return " ".join(["kcl run", cell.benchmark, *filter(None, words)])


def _options(values: Mapping[str, Any]) -> str:
    return " ".join(f"--{name} {value}" for name, value in values.items() if value is not None)


def change_options(cell: Cell) -> list[str]:
    """The options for what a cell changes in its recipe."""
    words = [f"--set {name}={value}" for name, value in cell.changes.items()]
    return words + ([] if cell.train_per_task is None else [f"--train-per-task {cell.train_per_task}"])


def _current(record: Mapping[str, Any]) -> dict[str, Any]:
    """A record with the settings and metrics that this version would record; metrics added since follow from its
    matrix.
    """
    matrix, initial = AccuracyMatrix.from_lists(record["accuracy_matrix"]), record.get("initial_accuracy")
    added = {name: metric(matrix, initial) for name, metric in METRICS.items() if name not in record}
    return with_current_settings(record) | added


def _identity(spec: RunSpec) -> RunSpec:
    """The same for a run that was requested and for its record, in which the benchmark's choices are filled in."""
    benchmark = find_benchmark(spec.benchmark)
    if "ways" in benchmark.stream_choices:
        spec = replace(spec, ways=spec.ways or DEFAULT_WAYS, class_order=spec.class_order or "fixed")
    return replace(spec, tasks=None if isinstance(spec.ways, tuple) else spec.tasks or benchmark.tasks, data=None)
