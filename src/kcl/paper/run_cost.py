"""The cost of a cell's runs: images through the backbone, bytes kept, and seconds where they were measured."""

from __future__ import annotations

from statistics import fmean
from typing import Any

from kcl.benchmarks.ways import DEFAULT_WAYS
from kcl.experiments.run_spec import RunSpec
from kcl.methods.training_compute import Shape, TrainingCompute, training_compute
from kcl.methods.views import copies_at_test
from kcl.paper.cell import Cell, FinishedRuns
from kcl.report.published import CIFAR100, MINIIMAGENET, PERMUTED, ROTATED

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


def cost_of(cell: Cell, runs: FinishedRuns) -> dict[str, Any]:
    """The cost of one run; only images where no run is finished, and nothing where the scale has no runs."""
    specs, records = runs.scale.specs(cell, runs.seeds[:1]), runs.of(cell)
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
