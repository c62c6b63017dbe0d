"""Runs done in this process, one group after another: one that raises is told of at the end, and the others go on."""

from __future__ import annotations

import traceback
from typing import Protocol

import torch

from kcl.core.files import write_whole
from kcl.engines.retries import LOGS, Failure, first_line
from kcl.experiments.experiment import Experiment, Group
from kcl.experiments.loggers import Loggers
from kcl.experiments.resuming import Saving, group_folder
from kcl.experiments.run_folder import Folder
from kcl.training.stream_run import OnProgress

POISONED = "not begun: after that error this process cannot use the GPU any more"


class Display(Protocol):
    def watch(self, label: str) -> OnProgress: ...

    def say(self, message: str) -> None: ...


class _Poisoned(Exception):
    """What has failed took the device with it."""


def execute_here(
    experiment: Experiment, folder: Folder, display: Display, saving: Saving, loggers: Loggers
) -> list[Failure]:
    """Do the runs that are not finished yet; those that failed. What is refused (KclError) ends all of them."""
    failures: list[Failure] = []
    tried: set[str] = set()

    def failed(group: Group, error: Exception) -> None:
        keys = [spec.key for spec in group.specs]
        log = folder.path / LOGS / f"{group_folder(folder.path, keys).name}.log"
        write_whole(log, "".join(traceback.format_exception(error)).encode(errors="replace"))
        left = sum(key not in folder.finished for key in keys)
        failures.append(Failure(experiment.group_label(group), left, first_line(error), log))
        tried.update(keys)
        if not usable(experiment.device):
            raise _Poisoned
        display.say(f"{failures[-1].label}: {failures[-1].error}; it is given up")

    try:
        experiment.execute(folder, display.watch, display.say, saving, loggers, failed)
    except _Poisoned:
        left = sum(spec.key not in tried for spec in experiment.pending(folder))
        if left:
            failures.append(Failure("the others", left, POISONED, failures[-1].log))
    return failures


def usable(device: torch.device) -> bool:
    """Whether a device still answers: some errors of a GPU stay with the process that met them."""
    if device.type != "cuda":
        return True
    try:
        torch.cuda.synchronize(device)
    except RuntimeError:
        return False
    return True
