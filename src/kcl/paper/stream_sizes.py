"""The tasks of the benchmarks as far as they decide how much a run computes: known without their data."""

from __future__ import annotations

from kcl.benchmarks.ways import DEFAULT_WAYS
from kcl.experiments.run_spec import RunSpec
from kcl.methods.compute import Compute, Shape, training_compute
from kcl.paper.cell import CIFAR100, MINIIMAGENET, PERMUTED, ROTATED

PER_CLASS = 500
"""Training samples of a class of CIFAR-100 and miniImageNet."""
DIGITS = (143, 146, 142, 147, 145, 146, 145, 144, 140, 144)
"""Training samples of each of scikit-learn's digits."""


def shapes(spec: RunSpec) -> list[Shape]:
    """A run's tasks; where ways vary, as if they did not."""
    ways = spec.ways if isinstance(spec.ways, int) else DEFAULT_WAYS
    if spec.benchmark in (PERMUTED, ROTATED):
        return [Shape(spec.train_per_task or 60_000, 10)] * (spec.tasks or 20)
    if spec.benchmark in (CIFAR100, MINIIMAGENET):
        return [Shape(spec.train_per_task or PER_CLASS * ways, ways)] * (spec.tasks or 100 // ways)
    if spec.benchmark == "split-digits":
        starts = range(0, ways * (spec.tasks or 2), ways)
        return [Shape(sum(DIGITS[start : start + ways]), ways) for start in starts]
    return [Shape(sum(DIGITS), 10)] * (spec.tasks or 20)


def compute(spec: RunSpec) -> Compute:
    return training_compute(spec.method, spec.settings, shapes(spec))
