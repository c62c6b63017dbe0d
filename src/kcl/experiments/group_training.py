"""Groups of runs: which are trained together, their training, results and failures.

How many fit in the memory of a GPU is measured; a group that does not fit after all, or cannot be stacked, is divided.
"""

from __future__ import annotations

import json
import platform
import traceback
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

import kcl
from kcl.benchmarks.joint_task import join
from kcl.core import results
from kcl.core.devices import Compute, device_name
from kcl.core.files import write_whole
from kcl.errors import KclError
from kcl.experiments import resuming, task_samples
from kcl.experiments.admission import RunPlan, build_learner, dataset_key
from kcl.experiments.remote_checkpoints import MirroringCheckpointer
from kcl.experiments.resuming import RunOptions
from kcl.experiments.run_folder import ResultStore
from kcl.experiments.run_spec import RunGroup, RunSpec, Training, by_training
from kcl.ops.precision import used
from kcl.training.state import CannotStack
from kcl.training.stream_run import OnProgress, Outcome, run_streams

MEMORY_SHARE = 0.7
"""The share of the free GPU memory that a group may take by estimate."""
LOGS = "logs"
"""The folder, next to the results, for the logs of runs that failed."""
UNUSABLE = "not started: after that error this process can no longer use the GPU"

Watch = Callable[[RunGroup], OnProgress]
"""Called when the training of a group starts; the answer is called with its progress."""


@dataclass(frozen=True)
class Experiment:
    """The runs of one command, and how they are stored and reported."""

    plan: RunPlan
    store: ResultStore
    options: RunOptions = field(default_factory=RunOptions)
    say: Callable[[str], None] = lambda _: None


# Which runs are trained together


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
    plan, store, options = experiment.plan, experiment.store, experiment.options
    specs, groups, others = {spec.key: spec for spec in plan.specs}, [], []
    for unfinished in filter(None, map(resuming.unfinished_group, folders)):
        if all(key in store.finished for key in unfinished.keys):
            store.forget(unfinished.folder, options.checkpoints)
        elif all(key in specs for key in unfinished.keys):
            if check_machine:
                resuming.check_made_with(unfinished, resuming.made_with(plan.compute), options.force, experiment.say)
            folder = resuming.group_folder(store.path, unfinished.keys)
            if not folder.exists():  # older versions named it after the settings of every method
                unfinished.folder.rename(folder)
            groups.append(resumed_group(unfinished, [specs[key] for key in unfinished.keys]))
        else:
            others.append(unfinished)
    taken = {spec.key for group in groups for spec in group.specs}
    pending = [json.loads(spec.key) for spec in plan.pending({*store.finished, *taken})]
    if others and pending and not options.force:
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


# Training


class Failure(NamedTuple):
    """Runs that were given up, and why in one line."""

    label: str
    runs: int
    error: str
    log: Path


def train_groups(experiment: Experiment, groups: Iterable[RunGroup], watch: Watch) -> list[Failure]:
    """Train one group after another in this process and return those that failed unexpectedly; the others continue.

    Every result is stored as soon as its group is finished. A `KclError` or `OSError` ends all groups.
    """
    plan, store = experiment.plan, experiment.store
    failures: list[Failure] = []
    failed_keys: set[str] = set()
    for group in groups:
        try:
            train_group(experiment, group, watch)
        except (KclError, OSError):  # a mistake of the user, a broken pipe or a full disk: the others would fail too
            raise
        except Exception as error:
            log = store.path / LOGS / f"{_checkpoints(experiment, group).name}.log"
            write_whole(log, "".join(traceback.format_exception(error)).encode(errors="replace"))
            unfinished = sum(spec.key not in store.finished for spec in group.specs)
            failures.append(Failure(plan.group_label(group.specs), unfinished, first_line(error), log))
            failed_keys.update(spec.key for spec in group.specs)
            if not usable(plan.compute.torch_device):
                if left := len(plan.pending({*store.finished, *failed_keys})):
                    failures.append(Failure("the others", left, UNUSABLE, log))
                break
            experiment.say(f"{failures[-1].label}: {failures[-1].error}; giving up")
    return failures


def train_group(experiment: Experiment, group: RunGroup, watch: Watch) -> None:
    """Train a group, or its parts where that is needed, and store the results."""
    train_parts(
        group,
        lambda part: _train(experiment, part, watch(part)),
        experiment.say,
        lambda part: _checkpoints(experiment, part).exists(),
    )


def train_parts(
    group: RunGroup,
    train: Callable[[RunGroup], None],
    say: Callable[[str], None],
    has_checkpoint: Callable[[RunGroup], bool] = lambda _: False,
) -> None:
    """Train a group: one training after another if they cannot be stacked, in halves if the GPU runs out of memory,
    of which other programs may have taken some since the groups were made. A checkpoint is of the whole group.
    """
    count = len(group.specs)
    try:
        train(group)
        return
    except CannotStack as reason:
        if group.plain:
            raise
        parts = [RunGroup([training], plain=True) for training in group.trainings]
        say(f"{reason}: training the {count} runs one after another")
    except torch.OutOfMemoryError:
        middle = (len(group.trainings) + 1) // 2
        if len(group.trainings) < 2 or has_checkpoint(group):
            raise
        parts = [RunGroup(group.trainings[:middle]), RunGroup(group.trainings[middle:])]
        say(f"{group.specs[0].method}, {count} runs do not fit in the free GPU memory: training them in two halves")
    torch.cuda.empty_cache()
    for part in parts:
        train_parts(part, train, say, has_checkpoint)


def first_line(error: BaseException) -> str:
    """An unexpected error in one line, with advice where there is some."""
    line = f"{type(error).__name__}: {error}".splitlines()[0]
    return f"{line}; try smaller settings or --runs-at-once" if out_of_memory(error) else line


def out_of_memory(error: BaseException) -> bool:
    by_type = isinstance(error, MemoryError | torch.OutOfMemoryError)
    return by_type or (isinstance(error, RuntimeError) and "allocate memory" in str(error))


def usable(device: torch.device) -> bool:
    """Whether a device still responds: some GPU errors last as long as the process."""
    if device.type != "cuda":
        return True
    try:
        torch.cuda.synchronize(device)
    except RuntimeError:
        return False
    return True


def _checkpoints(experiment: Experiment, group: RunGroup) -> Path:
    return resuming.group_folder(experiment.store.path, [spec.key for spec in group.specs])


def _train(experiment: Experiment, group: RunGroup, on_progress: OnProgress) -> None:
    """Train a group, store its results, and remove its checkpoints."""
    plan, store, options = experiment.plan, experiment.store, experiment.options
    folder = _checkpoints(experiment, group)
    identities = [{**spec.fields(), "kernel": spec.kernel} for spec in group.specs]
    about = {
        "runs": [json.loads(spec.key) for spec in group.specs],
        "made with": resuming.made_with(plan.compute),
        "command": options.command,
    }
    checkpointer = MirroringCheckpointer(
        options.checkpoints, folder, about, options.every, options.stop, experiment.say
    )
    streams = [plan.stream(training[0]) for training in group.trainings]
    learner = build_learner(group.trainings, streams, plan.compute, group.plain)
    shared = [(stream, len(runs)) for runs, stream in zip(group.trainings, streams, strict=True) for _ in runs]
    streams_of_runs = [stream for stream, _ in shared]
    outcomes = run_streams(learner, streams_of_runs, on_progress, checkpointer)
    for spec, identity, (_, shared_by), outcome in zip(group.specs, identities, shared, outcomes, strict=True):
        if spec.key in store.finished:
            continue
        counts = {"runs_at_once": len(group.trainings), "training_shared_by": shared_by}
        result = _result(identity, outcome, plan.compute, counts)
        result |= {"command": options.command, **options.notes}
        store.add([result])
        if outcome.diverged:
            finite = np.isfinite(np.diagonal(outcome.matrix.values))
            task = int(finite.argmin()) + 1  # runs trained beside it may have continued to the end
            experiment.say(f"{plan.label(spec)}: diverged in task {task}: the loss is not finite; try a lower lr")
    if options.save_samples:
        names = [plan.dataset(spec).class_names for spec in group.specs]
        samples = task_samples.collect(learner, streams_of_runs, names)
        for identity, tasks in zip(identities, samples, strict=True):
            if tasks is not None:
                task_samples.save(store.path, identity, tasks)
    store.forget(folder, options.checkpoints)


def _result(identity: dict[str, Any], outcome: Outcome, compute: Compute, counts: dict[str, int]) -> dict[str, Any]:
    """The measurements of a run as a line of results.jsonl; `counts`: how many were trained together."""
    confusion: dict[str, Any] = {}
    if (counts_by_task := outcome.task_confusion) is not None:
        right, answered = sum(row[task] for task, row in enumerate(counts_by_task)), sum(map(sum, counts_by_task))
        confusion = {"task_accuracy": 100.0 * right / max(1, answered), "task_confusion": counts_by_task}
    versions = {"kcl": kcl.__version__, "code": resuming.code(), "torch": torch.__version__, "numpy": np.__version__}
    return {
        "format": results.FORMAT,
        **identity,
        "versions": versions | {"python": platform.python_version()},
        "device": device_name(compute.torch_device),
        "threads": torch.get_num_threads(),
        "seconds": round(outcome.seconds, 3),
        "learning_seconds": [round(seconds, 3) for seconds in outcome.learning_seconds],
        **counts,
        "precision": used(compute.precision, compute.torch_device, compute.compiled),
        "accuracy_matrix": outcome.matrix.to_lists(),
        "initial_accuracy": outcome.initial_accuracy,
        **outcome.matrix.summary(outcome.initial_accuracy),
        **confusion,
        "diverged": outcome.diverged,
        "memory": outcome.memory,
        "resumed": outcome.resumed,
        "fingerprint": outcome.fingerprint,
    }
