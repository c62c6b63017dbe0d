"""The demonstration: KCL beside naive SGD on a small Permuted MNIST, as a table, a figure and a page."""

from __future__ import annotations

from kcl.experiments.run_spec import RunSpec
from kcl.methods.recipes import published_settings

BENCHMARK, TASKS, TRAIN_PER_TASK, SEEDS = "permuted-mnist", 5, 5000, (0, 1, 2)


def demo_specs() -> list[RunSpec]:
    return [
        RunSpec(BENCHMARK, method, seed, published_settings(BENCHMARK, method), TASKS, TRAIN_PER_TASK)
        for method in ("naive-sgd", "kcl")
        for seed in SEEDS
    ]
