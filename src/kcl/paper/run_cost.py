"""The cost of a cell's runs: images through the backbone, bytes kept, and seconds where they were measured."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from kcl.benchmarks.ways import DEFAULT_WAYS
from kcl.experiments.run_spec import RunSpec
from kcl.methods.training_compute import Shape, TrainingCompute, training_compute
from kcl.methods.views import copies_at_test
from kcl.paper.cell import Cell, FinishedRuns
from kcl.paper.item import TableColumn
from kcl.report.formatting import MISSING
from kcl.report.published import CIFAR100, MINIIMAGENET, PERMUTED, ROTATED

COST_NOTE = (
    "Bytes kept: samples and everything else that a method keeps of its tasks; average: the averaged weights, which "
    "are kept beside the network. Images per sample: images that pass the backbone during training for each training "
    "sample of the stream. This is counted exactly and is the same on every machine: a batch and the coreset or the "
    "replayed samples beside it, in all rotations, in every update. Images per query: the number of views in which a "
    "query is shown. Seconds per run: training on one GPU, as the share of one run among those trained together, "
    "whatever else the GPU did at the time; “cpu” where it was one core instead."
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


class Cost(NamedTuple):
    """The cost of one run; None where no run is finished."""

    images_per_sample: float | None = None
    images_per_query: int | None = None
    bytes_kept: int | None = None
    average_bytes: int | None = None
    seconds: float | None = None
    device: str | None = None


def cost_of(cell: Cell, runs: FinishedRuns) -> Cost:
    """Empty if the scale has no runs for the cell."""
    specs, records = runs.scale.specs(cell, runs.seeds[:1]), runs.of(cell)
    if not specs:
        return Cost()
    cost = Cost(run_compute(specs[0]).images_per_sample, copies_at_test(specs[0].settings))
    if not records:
        return cost
    shares = [sum(record["learning_seconds"]) / record.get("runs_at_once", 1) for record in records]
    memory = records[0]["memory"]
    return cost._replace(
        bytes_kept=memory["bytes"],
        average_bytes=memory.get("average_bytes", 0),
        seconds=sum(shares) / len(shares),
        device=records[0].get("device"),
    )


def _column(heading: str, field: str, text: Callable[[Any], str], name: str = "") -> TableColumn:
    return TableColumn.of(heading, lambda cell, runs: getattr(cost_of(cell, runs), field), text, name)


def _seconds(cell: Cell, runs: FinishedRuns) -> str:
    cost = cost_of(cell, runs)
    seconds = MISSING if cost.seconds is None else f"{cost.seconds:.{0 if cost.seconds >= 10 else 1}f}"
    return seconds + (" (cpu)" if cost.device == "cpu" else "")


IMAGES_PER_SAMPLE = _column("images per sample", "images_per_sample", "{:.2f}".format)
COST = (
    _column("bytes kept", "bytes_kept", "{:,}".format),
    _column("average", "average_bytes", lambda size: f"{size:,}" if size else MISSING, "bytes of the average"),
    IMAGES_PER_SAMPLE,
    _column("images per query", "images_per_query", str),
    TableColumn(
        "seconds per run",
        _seconds,
        lambda cell, runs: {"seconds per run": cost_of(cell, runs).seconds, "device": cost_of(cell, runs).device},
    ),
)
