"""Training groups of runs: checkpoints on the way, smaller groups where memory or stacking demands it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path

import torch

from kcl.errors import KclError
from kcl.experiments import remote_checkpoints, resuming, task_samples
from kcl.experiments.experiment import Experiment
from kcl.experiments.grouping import RunGroup
from kcl.experiments.learner_building import build_learner
from kcl.experiments.record import store_result
from kcl.training.batches import CannotStack
from kcl.training.checkpointer import Checkpointer
from kcl.training.stream_run import OnProgress, run_streams

Watch = Callable[[RunGroup], OnProgress]
"""Called when the training of a group starts; the answer is called with its progress."""


def train_groups(
    experiment: Experiment,
    groups: Iterable[RunGroup],
    watch: Watch,
    on_error: Callable[[RunGroup, Exception], None] | None = None,
) -> None:
    """Train one group after another; every result is stored as soon as its group is finished.

    `on_error` is called for a group that fails unexpectedly, and the others continue; without it the error is raised.
    """
    for group in groups:
        try:
            train_group(experiment, group, watch)
        except (KclError, OSError):  # a mistake of the user, a broken pipe or a full disk: the others would fail too
            raise
        except Exception as error:
            if on_error is None:
                raise
            on_error(group, error)


def train_group(experiment: Experiment, group: RunGroup, watch: Watch) -> None:
    """Train a group: one training after another if they cannot be stacked, in halves if the GPU runs out of memory,
    of which other programs may have taken some since the groups were made.
    """
    count, label = len(group.specs), experiment.plan.group_label(group.specs)
    try:
        return _train(experiment, group, watch(group))
    except CannotStack as reason:
        if group.plain:
            raise
        parts = [RunGroup([training], plain=True) for training in group.trainings]
        experiment.say(f"{reason}: training the {count} runs one after another")
    except torch.OutOfMemoryError:
        middle = (len(group.trainings) + 1) // 2
        if len(group.trainings) < 2 or _checkpoints(experiment, group).exists():  # a checkpoint is of the whole group
            raise
        parts = [RunGroup(group.trainings[:middle]), RunGroup(group.trainings[middle:])]
        experiment.say(f"{label} do not fit in the free GPU memory: training them in two halves")
    torch.cuda.empty_cache()
    for part in parts:
        train_group(experiment, part, watch)
    return None


def _checkpoints(experiment: Experiment, group: RunGroup) -> Path:
    return resuming.group_folder(experiment.store.path, [spec.key for spec in group.specs])


def _train(experiment: Experiment, group: RunGroup, on_progress: OnProgress) -> None:
    """Train a group, store its results, and remove its checkpoints."""
    plan, store, saving = experiment.plan, experiment.store, experiment.saving
    folder = _checkpoints(experiment, group)
    about = {
        "runs": [json.loads(spec.key) for spec in group.specs],
        "made with": resuming.made_with(plan.compute),
        "command": experiment.command,
    }
    local = Checkpointer(folder, about, saving.every, saving.stop, experiment.say)
    keeper = remote_checkpoints.keeper(saving.checkpoints, local)
    streams = [plan.stream(training[0]) for training in group.trainings]
    learner = build_learner(group.trainings, streams, plan.compute, group.plain)
    run_list = [
        (spec, stream, len(training))
        for training, stream in zip(group.trainings, streams, strict=True)
        for spec in training
    ]
    streams_of_runs = [stream for _, stream, _ in run_list]
    outcomes = run_streams(learner, streams_of_runs, on_progress, keeper)
    for (spec, _, shared_by), outcome in zip(run_list, outcomes, strict=True):
        if spec.key not in store.finished:
            store_result(experiment, spec, outcome, len(group.trainings), shared_by)
    if experiment.save_samples:
        names = [plan.dataset(spec).class_names for spec in group.specs]
        samples = task_samples.collect(learner, streams_of_runs, names)
        for spec, tasks in zip(group.specs, samples, strict=True):
            if tasks is not None:
                task_samples.save(store.path, {**spec.fields(), "kernel": spec.kernel}, tasks)
    store.forget(folder, saving.checkpoints)
