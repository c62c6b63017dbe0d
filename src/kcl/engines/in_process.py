"""Groups trained in this process, one after another. A group that fails is reported at the end; the others continue."""

from __future__ import annotations

import traceback
from collections.abc import Sequence

import torch

from kcl.core.files import write_whole
from kcl.engines.retries import LOGS, Failure, first_line
from kcl.experiments.experiment import Experiment
from kcl.experiments.group_training import train_groups
from kcl.experiments.grouping import RunGroup
from kcl.experiments.loggers import Loggers
from kcl.experiments.progress import Display
from kcl.experiments.resuming import group_folder
from kcl.training.stream_run import OnProgress

UNUSABLE = "not started: after that error this process can no longer use the GPU"


class _DeviceLost(Exception):
    """After an error the device no longer responds."""


def run_in_process(
    experiment: Experiment, groups: Sequence[RunGroup], display: Display, loggers: Loggers
) -> list[Failure]:
    """Train the groups and return those that failed. A `KclError` ends all of them."""
    plan, store = experiment.plan, experiment.store
    failures: list[Failure] = []
    failed_runs: set[str] = set()

    def watch(group: RunGroup) -> OnProgress:
        label, specs = plan.group_label(group.specs), group.specs
        place = f"{len(plan.records(store.finished)) + 1}/{len(plan.specs)} " if len(plan.specs) > len(specs) else ""
        return loggers.follow([plan.logged_run(spec) for spec in specs], display.watch(place + label))

    def on_error(group: RunGroup, error: Exception) -> None:
        keys = [spec.key for spec in group.specs]
        log = store.path / LOGS / f"{group_folder(store.path, keys).name}.log"
        write_whole(log, "".join(traceback.format_exception(error)).encode(errors="replace"))
        unfinished = sum(key not in store.finished for key in keys)
        failures.append(Failure(plan.group_label(group.specs), unfinished, first_line(error), log))
        failed_runs.update(keys)
        if not usable(plan.compute.torch_device):
            raise _DeviceLost
        display.say(f"{failures[-1].label}: {failures[-1].error}; giving up")

    try:
        train_groups(experiment, groups, watch, on_error)
    except _DeviceLost:
        if left := len(plan.pending({*store.finished, *failed_runs})):
            failures.append(Failure("the others", left, UNUSABLE, failures[-1].log))
    return failures


def usable(device: torch.device) -> bool:
    """Whether a device still responds: some GPU errors last as long as the process."""
    if device.type != "cuda":
        return True
    try:
        torch.cuda.synchronize(device)
    except RuntimeError:
        return False
    return True
