"""An order, done in this process: the runs are trained as on one machine, and all that becomes of them is told."""

from __future__ import annotations

import contextlib
import time
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch

from kcl.core.devices import choose_device
from kcl.engines import dataset_file
from kcl.engines.job import Message, Order, Parcel
from kcl.engines.retries import first_line
from kcl.errors import KclError
from kcl.experiments import remote_checkpoints, resuming
from kcl.experiments.experiment import Experiment, Group
from kcl.experiments.resuming import Saving
from kcl.experiments.run_spec import by_training
from kcl.training.checkpointer import clear
from kcl.training.stopping import Interrupted, Stop
from kcl.training.stream_run import OnProgress, Progress

Tell = Callable[[Message], None]
Fetch = Callable[[Parcel], bytes | Path]
EVERY = 1.0
"""Seconds between two words about steps; the end of a task is told at once."""


def beside(wanted: Parcel) -> Path:
    """The file that gave the data, for a machine that sees the same folders."""
    return Path(wanted.path)


def do(order: Order, tell: Tell, stop: Stop, fetch: Fetch = beside) -> None:
    """Do an order; the last thing told is how it ended. Nothing is raised."""
    try:
        tell({"kind": "done", "checkpoints": _do(order, tell, stop, fetch)})
    except Interrupted:
        tell({"kind": "stopped"})
    except KclError as error:
        tell({"kind": "failed", "error": str(error)})
    except Exception as error:
        tell({"kind": "failed", "error": first_line(error), "log": traceback.format_exc()})


def _do(order: Order, tell: Tell, stop: Stop, fetch: Fetch) -> list[str]:
    """The names of the checkpoints that are not needed any more when the results are on the disk of whoever asked."""
    if order.code != resuming.code():
        raise KclError(
            f"kcl's code here ({resuming.code()}) is not that of the machine that asks ({order.code}); "
            "install the same version on all machines"
        )
    device = choose_device(order.device)
    torch.set_num_threads(order.threads)
    datasets = {
        (wanted.benchmark, wanted.image_size, wanted.held_out): dataset_file.unpack(
            wanted.digest, partial(fetch, wanted)
        )
        for wanted in order.parcels
    }

    def say(text: str) -> None:
        tell({"kind": "say", "text": text})

    experiment = Experiment(
        order.specs,
        order.command,
        device=device,
        runs_at_once=order.runs_at_once,
        compiled=order.compiled,
        precision=order.precision,
        say=say,
        save_samples=order.save_samples,
        datasets=datasets,
        notes=order.notes,
    )
    keeping = Relay(Path(order.out), tell)
    saving = Saving(order.saves(), stop, order.force, order.checkpoints)
    for group in _groups(order, experiment, saving, keeping, say):
        experiment.train(group, keeping, lambda _: _follow(tell), say, saving)
    if order.checkpoints is not None:
        keeping.clear()  # a copy is elsewhere
    return [place.name for place in keeping.done]


class Relay:
    """Where a worker keeps results: it hands them over. Until they have arrived, its checkpoints stay."""

    def __init__(self, path: Path, tell: Tell) -> None:
        self.path, self._tell = path, tell
        self.finished: dict[str, dict[str, Any]] = {}
        self.done: list[Path] = []

    def add(self, record: dict[str, Any]) -> None:
        self._tell({"kind": "record", "record": record})

    def forget(self, checkpoints: Path, url: str | None = None) -> None:  # noqa: ARG002 - copies stay too
        self.done.append(checkpoints)

    def clear(self) -> None:
        for checkpoints in self.done:
            clear(checkpoints)
            with contextlib.suppress(OSError):
                checkpoints.parent.rmdir()


def _groups(
    order: Order, experiment: Experiment, saving: Saving, keeping: Relay, say: Callable[[str], None]
) -> list[Group]:
    """The order as one group, or as many as this machine's GPU needs; what an earlier attempt began is gone on with."""
    left, going_on = list(experiment.specs), []
    apart = by_training(left)
    for specs in [left, *apart] if len(apart) > 1 else [left]:
        place = resuming.group_folder(keeping.path, [spec.key for spec in specs])
        remote_checkpoints.pull(saving.checkpoints, place)
        found = resuming.begun_at(place)
        if found is not None:
            resuming.check_made_with(found, experiment.made_with(), saving.force, say)
            going_on.append(Group(specs, found.separate, begun=True))
    taken = {spec.key for group in going_on for spec in group.specs}
    left = [spec for spec in left if spec.key not in taken]
    whole = order.device == "cpu" or order.begun
    fresh = ([left] if left else []) if whole else experiment.groups(left)
    return [*going_on, *(Group(specs, order.separate) for specs in fresh)]


def _follow(tell: Tell) -> OnProgress:
    last = 0.0

    def on_progress(progress: Progress) -> None:
        nonlocal last
        now = time.monotonic()
        if progress.step is not None and now - last < EVERY:
            return
        last = now
        step = progress.step
        tell(
            {
                "kind": "progress",
                "task": progress.task,
                "tasks": progress.tasks,
                "step": None if step is None else [step.step, step.steps, step.loss],
                "average_accuracy": progress.average_accuracy,
                "runs": [list(run) for run in progress.runs],
            }
        )

    return on_progress
