"""Which runs are trained together, and how many of them fit in the memory of a GPU."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import Any

import torch

from kcl.benchmarks.joint_task import join
from kcl.errors import KclError
from kcl.experiments import resuming
from kcl.experiments.admission import RunPlan, build_learner, dataset_key
from kcl.experiments.resuming import Saving
from kcl.experiments.run_folder import ResultStore
from kcl.experiments.run_spec import RunGroup, RunSpec, Training, by_training
from kcl.training.state import CannotStack

MEMORY_SHARE = 0.7
"""The share of the free GPU memory that a group may take by estimate."""


@dataclass(frozen=True)
class Experiment:
    """The runs of one command, and how they are stored and reported."""

    plan: RunPlan
    store: ResultStore
    command: str
    saving: Saving = field(default_factory=Saving)
    say: Callable[[str], None] = lambda _: None
    notes: Mapping[str, Any] = field(default_factory=dict)
    """Added to the result of every run."""
    save_samples: bool = False
    """Whether images of tasks, coresets and mistakes are saved."""


def remaining_groups(
    experiment: Experiment, default_size: int | None = None, folders: Iterable[Path] | None = None
) -> list[RunGroup]:
    """The groups of all unfinished runs, those that have a checkpoint first.

    `default_size`: trainings per group where the groups are trained on GPUs of other machines. `folders`: where there
    may be checkpoints, unless anywhere in the output folder.
    """
    plan, store = experiment.plan, experiment.store
    everywhere = sorted((store.path / resuming.FOLDER).glob("*"))
    resumed = _resumed_groups(experiment, everywhere if folders is None else folders, default_size is None)
    pending = plan.pending({*store.finished, *(spec.key for group in resumed for spec in group.specs)})
    trainings = by_training(pending)
    groups = group_trainings(plan, trainings, default_size)
    if len(trainings) < len(pending) and folders is None:
        count = "one training" if len(trainings) == 1 else f"{len(trainings)} trainings"
        experiment.say(f"{len(pending)} runs need only {count}: some differ only in how they are tested")
    return [*resumed, *groups]


def group_trainings(plan: RunPlan, trainings: Sequence[Training], default_size: int | None = None) -> list[RunGroup]:
    """Groups of trainings that can be stacked; on a CPU, where stacking gains nothing, every training is a group."""
    compute, alike = plan.compute, dict[Any, list[Training]]()
    for training in trainings:
        spec = training[0]
        data = (*dataset_key(spec), plan.task_sizes[spec.key], spec.train_per_task)
        alike.setdefault((*data, spec.method, spec.settings.stacking_key()), []).append(training)
    groups = []
    for members in alike.values():
        size = 1 if compute.on_cpu else compute.runs_at_once or default_size or fitting_trainings(plan, members)
        parts = (members[start : start + size] for start in range(0, len(members), size))
        groups += [RunGroup(part, compute.plain) for part in parts]
    return groups


def fitting_trainings(plan: RunPlan, trainings: Sequence[Training]) -> int:
    """How many of the trainings fit in the free memory of the GPU.

    Measured with one training: its step in the task with the most classes, plus its classifier in every way of testing,
    because a captured step keeps its memory while the runs are tested.
    """
    compute, device = replace(plan.compute, compiled=False), plan.compute.torch_device
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats(device)
    training = _tested_in_every_way(trainings)
    stream = plan.stream(training[0])
    learner = build_learner([training], [stream], compute, plain=False)
    try:
        largest = max(stream, key=lambda task: task.ways)
        learner.rehearse([join(list(stream), len(stream.class_labels)) if learner.joint else largest])
    except CannotStack:
        return len(trainings)
    each = torch.cuda.max_memory_allocated(device)
    if learner.method.keeps_coresets:
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        learner.rehearse_classifier([largest])
        each += torch.cuda.max_memory_allocated(device) - before
    return max(1, min(len(trainings), int(MEMORY_SHARE * torch.cuda.mem_get_info(device)[0] / each)))


def _tested_in_every_way(trainings: Sequence[Training]) -> list[RunSpec]:
    """The training with the most runs, extended by every other way of testing among the trainings."""
    longest = max(trainings, key=len)
    others = {spec.settings.testing_key(): spec.settings for spec in chain.from_iterable(trainings)}
    for spec in longest:
        others.pop(spec.settings.testing_key(), None)
    first = longest[0].settings
    ways = [first.replace(**{name: getattr(one, name) for name in one.names_at_test()}) for one in others.values()]
    return [*longest, *(replace(longest[0], settings=settings) for settings in ways)]


def _resumed_groups(experiment: Experiment, folders: Iterable[Path], check_machine: bool) -> list[RunGroup]:
    """The groups that have a checkpoint in these folders. Refused if code or machine have changed, or if other runs are
    unfinished.

    `check_machine`: whether the groups are trained here; otherwise the worker that trains them checks.
    """
    plan, store, saving = experiment.plan, experiment.store, experiment.saving
    specs, groups, others = {spec.key: spec for spec in plan.specs}, [], []
    for unfinished in filter(None, map(resuming.unfinished_group, folders)):
        if all(key in store.finished for key in unfinished.keys):
            store.forget(unfinished.folder, saving.checkpoints)
        elif all(key in specs for key in unfinished.keys):
            if check_machine:
                resuming.check_made_with(unfinished, resuming.made_with(plan.compute), saving.force, experiment.say)
            folder = resuming.group_folder(store.path, unfinished.keys)
            if not folder.exists():  # older versions named it after the settings of every method
                unfinished.folder.rename(folder)
            groups.append(resumed_group(unfinished, [specs[key] for key in unfinished.keys]))
        else:
            others.append(unfinished)
    taken = {spec.key for group in groups for spec in group.specs}
    pending = [json.loads(spec.key) for spec in plan.pending({*store.finished, *taken})]
    if others and pending and not saving.force:
        resuming.refuse_other(others[0], pending)
    return groups


def resumed_group(unfinished: resuming.UnfinishedGroup, specs: Sequence[RunSpec]) -> RunGroup:
    trainings = by_training(specs)
    if unfinished.plain and len(trainings) > 1:
        raise KclError(
            f"{unfinished.folder} holds a checkpoint of {len(trainings)} trainings that an older version of kcl did "
            "one by one; this version cannot continue it: delete that folder to train its runs again"
        )
    return RunGroup(trainings, unfinished.plain)
