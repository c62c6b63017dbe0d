"""Training groups of runs: checkpoints, smaller groups if memory or stacking requires it, results and failures."""

from __future__ import annotations

import json
import platform
import traceback
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

import kcl
from kcl.core import results
from kcl.core.devices import Compute, device_name
from kcl.core.files import write_whole
from kcl.errors import KclError
from kcl.experiments import resuming, task_samples
from kcl.experiments.admission import build_learner
from kcl.experiments.grouping import Experiment
from kcl.experiments.remote_checkpoints import MirroringCheckpointer
from kcl.experiments.run_spec import RunGroup
from kcl.ops.precision import used
from kcl.training.state import CannotStack
from kcl.training.stream_run import OnProgress, Outcome, run_streams

LOGS = "logs"
"""The folder, next to the results, for the logs of runs that failed."""
UNUSABLE = "not started: after that error this process can no longer use the GPU"

Watch = Callable[[RunGroup], OnProgress]
"""Called when the training of a group starts; the answer is called with its progress."""


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
    plan, store, saving = experiment.plan, experiment.store, experiment.saving
    folder = _checkpoints(experiment, group)
    identities = [{**spec.fields(), "kernel": spec.kernel} for spec in group.specs]
    about = {
        "runs": [json.loads(spec.key) for spec in group.specs],
        "made with": resuming.made_with(plan.compute),
        "command": experiment.command,
    }
    checkpointer = MirroringCheckpointer(saving.checkpoints, folder, about, saving.every, saving.stop, experiment.say)
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
        result |= {"command": experiment.command, **experiment.notes}
        store.append(result)
        store.finished[spec.key] = result
        if outcome.diverged:
            finite = np.isfinite(np.diagonal(outcome.matrix.values))
            task = int(finite.argmin()) + 1  # runs trained beside it may have continued to the end
            experiment.say(f"{plan.label(spec)}: diverged in task {task}: the loss is not finite; try a lower lr")
    if experiment.save_samples:
        names = [plan.dataset(spec).class_names for spec in group.specs]
        samples = task_samples.collect(learner, streams_of_runs, names)
        for identity, tasks in zip(identities, samples, strict=True):
            if tasks is not None:
                task_samples.save(store.path, identity, tasks)
    store.forget(folder, saving.checkpoints)


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
