"""What to run: specs checked against benchmark, data and method, with the choices that were left open filled in.

Also the streams and the learner of a group of admitted runs; nothing else constructs learners for a command.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import torch

from kcl.benchmarks.registry import find_benchmark
from kcl.benchmarks.task import Stream
from kcl.core.devices import Compute
from kcl.core.randomness import numpy_generator
from kcl.core.results import MOST_TASKS
from kcl.core.settings import Settings
from kcl.data.dataset import Dataset
from kcl.errors import KclError
from kcl.experiments.run_spec import CHOICES, RunSpec, Training, by_training, chosen_fields
from kcl.methods.method import Method
from kcl.methods.recipes import check_backbone, find_method, published_backbone
from kcl.ops.torch_private import need_compiler
from kcl.training.stack import RunStack

LONG = 40_000
"""Steps from which compiling, which takes about 15 seconds, pays off on a GPU."""

HOLD_OUT_SEED = 0
"""The same samples are held out for every run's seed, so that all runs are compared on the same ones."""

DatasetKey = tuple[str, int | None, float | None]
"""Benchmark, image size and held-out share: runs that agree in these share their arrays."""


def dataset_key(spec: RunSpec) -> DatasetKey:
    return spec.benchmark, spec.image_size, spec.held_out


class TaskSize(NamedTuple):
    train: int
    test: int
    ways: int


@dataclass(frozen=True)
class RunPlan:
    """Runs that can all be done, how they are computed, and the data they need."""

    compute: Compute
    specs: list[RunSpec]
    datasets: dict[DatasetKey, Dataset]
    task_sizes: dict[str, tuple[TaskSize, ...]]
    """By the key of a run. Only runs that agree here can be trained together."""

    def dataset(self, spec: RunSpec) -> Dataset:
        return self.datasets[dataset_key(spec)]

    def stream(self, spec: RunSpec) -> Stream:
        return _stream(spec, self.dataset(spec))

    def pending(self, finished: Collection[str]) -> list[RunSpec]:
        """The runs whose keys are not among the finished ones."""
        return [spec for spec in self.specs if spec.key not in finished]

    def records(self, finished: Mapping[str, dict[str, Any]]) -> list[dict[str, Any]]:
        """The results of the runs that are finished, in the order of the plan."""
        return [finished[spec.key] for spec in self.specs if spec.key in finished]

    def label(self, spec: RunSpec, without: Collection[str] = ()) -> str:
        """Method, kernel and seed of a run, and the settings in which it differs from the others."""
        varied = (name for name in self._varied_settings if name not in without)
        return " ".join([spec.label, *(f"{name}={getattr(spec.settings, name)}" for name in varied)])

    def group_label(self, specs: Sequence[RunSpec]) -> str:
        if len(specs) == 1:
            return self.label(specs[0])
        if len(by_training(specs)) == 1:
            return f"{self.label(specs[0], without=specs[0].settings.names_at_test())} tested in {len(specs)} ways"
        return f"{specs[0].method}, {len(specs)} runs"

    @cached_property
    def _varied_settings(self) -> list[str]:
        """The settings other than the kernel in which runs of one method differ."""
        if len({spec.method for spec in self.specs}) != 1:
            return []
        names = [name for name in self.specs[0].settings.to_dict() if name != "kernel"]
        return [name for name in names if len({getattr(spec.settings, name) for spec in self.specs}) > 1]


def admit(
    specs: Sequence[RunSpec],
    compute: Compute,
    data_dir: Path | None = None,
    say: Callable[[str], None] = lambda _: None,
    datasets: Mapping[DatasetKey, Dataset] | None = None,
) -> RunPlan:
    """Fill in the choices of the benchmark and raise a `KclError` for any run that cannot be done, before anything is
    written. `datasets`: those that are loaded already.
    """
    if compute.on_cpu and compute.compiled:
        need_compiler()
    plan = RunPlan(compute, [], dict(datasets or {}), {})
    checked: dict[Any, tuple[dict[str, Any], tuple[TaskSize, ...]]] = {}
    for spec in specs:
        benchmark, choices = find_benchmark(spec.benchmark), chosen_fields(spec, CHOICES)
        benchmark.check_choices(spec.benchmark, choices)
        spec = replace(spec, **{**benchmark.load_choices, **choices})
        if dataset_key(spec) not in plan.datasets:
            dataset = benchmark.load(data_dir, say, **chosen_fields(spec, benchmark.load_choices))
            held_out = spec.held_out
            plan.datasets[dataset_key(spec)] = dataset if held_out is None else with_held_out(dataset, held_out)
        identity = tuple(getattr(spec, field.name) for field in dataclasses.fields(spec) if field.name != "settings")
        check = (identity, spec.settings.stacking_key(), spec.settings.testing_key())
        if check not in checked:  # a grid over numbers has the same tasks in every cell
            checked[check] = _check(spec, plan.dataset(spec))
        resolved, sizes = checked[check]
        spec = replace(spec, **resolved)
        plan.specs.append(spec)
        plan.task_sizes[spec.key] = sizes
    return plan


def _check(spec: RunSpec, dataset: Dataset) -> tuple[dict[str, Any], tuple[TaskSize, ...]]:
    """The fields that the benchmark decided, and the sizes of the tasks."""
    stream = _stream(spec, dataset)
    check_backbone(stream.input_shape, spec.settings)
    most = MOST_TASKS if spec.settings.names_tasks else MOST_TASKS // 2  # the confusion of tasks takes room too
    if len(stream) > most:
        raise KclError(f"{spec.benchmark}: a run has at most {most} tasks, not {len(stream)}; set --tasks")
    method, sizes, classes = build_method(spec, stream), [], []
    for task in stream:
        method.check(task)
        sizes.append(TaskSize(len(task.train), len(task.test), task.ways))
        classes.append(task.classes)
    _check_scenario(spec, classes)
    choices = {name: getattr(stream, name) for name in find_benchmark(spec.benchmark).stream_choices}
    return {"tasks": len(stream), "data": dataset.identity, **choices}, tuple(sizes)


def _check_scenario(spec: RunSpec, classes: Sequence[tuple[int, ...]]) -> None:
    """`class` is about tasks that have classes of their own, `domain` about tasks that share theirs."""
    scenario, shared = spec.settings.scenario, len(set(chain.from_iterable(classes))) < sum(map(len, classes))
    if scenario == "class" and shared:
        raise KclError(f"the tasks of {spec.benchmark} share their classes: use --scenario domain instead of class")
    if scenario == "domain" and len({frozenset(of_task) for of_task in classes}) > 1:
        raise KclError(f"the tasks of {spec.benchmark} have different classes: use --scenario class instead of domain")


def _stream(spec: RunSpec, dataset: Dataset) -> Stream:
    benchmark = find_benchmark(spec.benchmark)
    choices = chosen_fields(spec, ("tasks", "train_per_task", *benchmark.stream_choices))
    return benchmark.stream(dataset, seed=spec.seed, **choices)


def with_held_out(dataset: Dataset, share: float) -> Dataset:
    """The dataset with `share` of every class's training samples as its test data and the rest as its training data,
    for choosing settings: nothing is left of its test data.

    Held out of the dataset, not of a task: where tasks transform the same samples, no task trains on them.
    """
    if not 0.0 < share < 1.0:
        raise KclError(f"the share of training samples held out must lie between 0 and 1, not {share:g}")
    held = torch.zeros(len(dataset.train_labels), dtype=torch.bool)
    for label, name in enumerate(dataset.class_names):
        rows = (dataset.train_labels == label).nonzero().flatten()
        count = round(share * len(rows))
        if not 0 < count < len(rows):
            raise KclError(
                f"{share:g} of the {len(rows)} training samples of class {name!r} are {count}: "
                "hold out a share that leaves some on both sides"
            )
        chosen = numpy_generator(HOLD_OUT_SEED, "held out", label).choice(len(rows), count, replace=False)
        held[rows[torch.from_numpy(chosen)]] = True
    return replace(
        dataset,
        train_inputs=dataset.train_inputs[~held],
        train_labels=dataset.train_labels[~held],
        test_inputs=dataset.train_inputs[held],
        test_labels=dataset.train_labels[held],
    )


def build_method(spec: RunSpec, stream: Stream) -> Method:
    return find_method(spec.method)(spec.settings, len(stream.class_labels), sum(task.ways for task in stream))


def build_learner(trainings: Sequence[Training], streams: Sequence[Stream], compute: Compute, plain: bool) -> RunStack:
    """The learner of a group; `streams` has one stream per training. `plain`: a single training, without vmap."""
    variants = [[build_method(spec, stream) for spec in runs] for runs, stream in zip(trainings, streams, strict=True)]
    methods, firsts = [several[0] for several in variants], [runs[0] for runs in trainings]
    backbones = [
        partial(published_backbone, stream.input_shape, spec.settings)
        for spec, stream in zip(firsts, streams, strict=True)
    ]
    compiled = False if plain else compute.compiled
    if compiled is None:
        compiled = step_count(firsts[0].settings, sum(len(task.train) for task in streams[0])) >= LONG
    seeds = [spec.seed for spec in firsts]
    return RunStack(methods, backbones, seeds, compute.device, compiled, compute.precision, variants, plain)


def step_count(settings: Settings, train_samples: int) -> int:
    """About how many steps a run takes over all its training samples."""
    return settings.epochs * train_samples // settings.batch_size * settings.updates_per_batch
