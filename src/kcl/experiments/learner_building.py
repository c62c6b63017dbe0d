"""From run specs to the learner that trains them. The only place that constructs one for a command."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from kcl.benchmarks.task import Stream
from kcl.core.compute import Compute
from kcl.core.settings import Settings
from kcl.experiments.run_spec import RunSpec
from kcl.methods.method import Method
from kcl.methods.recipes import find_method, published_backbone
from kcl.training.stack import RunStack

LONG = 40_000
"""Steps from which compiling, which takes about 15 seconds, pays off on a GPU."""

Training = Sequence[RunSpec]
"""Runs that share one training and differ only in how they are tested."""


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
