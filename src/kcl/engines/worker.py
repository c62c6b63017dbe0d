"""A job done in this process: its runs are trained as usual, and everything that happens is reported in messages."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch

from kcl.core.devices import choose_device
from kcl.engines.dataset_file import DatasetFile, unpack
from kcl.engines.job import Job, Message
from kcl.errors import KclError
from kcl.experiments import remote_checkpoints, resuming
from kcl.experiments.admission import admit
from kcl.experiments.group_training import Experiment, first_line, remaining_groups, train_group
from kcl.experiments.run_folder import ResultStore
from kcl.experiments.run_spec import RunGroup, by_training
from kcl.training.stopping import Interrupted, Stop
from kcl.training.stream_run import OnProgress, Progress

Send = Callable[[Message], None]
Fetch = Callable[[DatasetFile], bytes | Path]
PROGRESS_EVERY = 1.0
"""Seconds between two messages about steps; the end of a task is reported at once."""


def run_job(job: Job, send: Send, stop: Stop, fetch: Fetch = lambda file: Path(file.path)) -> None:
    """Do a job. Nothing is raised; the last message says how it ended. `fetch` gets the content of a dataset file; by
    default both machines share the folder it is in.
    """
    try:
        send({"kind": "done", "checkpoints": _run(job, send, stop, fetch)})
    except Interrupted:
        send({"kind": "stopped"})
    except KclError as error:
        send({"kind": "failed", "error": str(error)})
    except Exception as error:
        send({"kind": "failed", "error": first_line(error), "log": traceback.format_exc()})


def _run(job: Job, send: Send, stop: Stop, fetch: Fetch) -> list[str]:
    """The names of the checkpoint folders that can be removed once the results are stored."""
    if job.code != resuming.code():
        raise KclError(
            f"kcl's code here ({resuming.code()}) differs from that of the command ({job.code}); "
            "install the same version on all machines"
        )
    choose_device(job.compute.device)  # raises if the device is not available here
    torch.set_num_threads(job.threads)
    datasets = {file.key: unpack(file.digest, partial(fetch, file)) for file in job.datasets}

    def say(text: str) -> None:
        send({"kind": "say", "text": text})

    obsolete: list[Path] = []  # checkpoints are kept until the command has stored the results
    store = ResultStore(
        Path(job.out),
        append=lambda record: send({"kind": "record", "record": record}),
        forget=lambda checkpoints, _: obsolete.append(checkpoints),
    )
    plan = admit(job.specs, job.compute, say=say, datasets=datasets)
    options = job.options._replace(stop=stop)
    experiment = Experiment(plan, store, options, say)
    trainings = by_training(plan.specs)
    earlier = [RunGroup(trainings), *(RunGroup([training]) for training in trainings)]  # earlier attempts did these
    folders = {resuming.group_folder(store.path, [spec.key for spec in group.specs]) for group in earlier}
    for folder in folders:
        remote_checkpoints.pull(options.checkpoints, folder)
    for group in remaining_groups(experiment, folders=folders):
        train_group(experiment, group, lambda _: _report_progress(send))
    if options.checkpoints is not None:  # there are copies at the URL
        for checkpoints in obsolete:
            remote_checkpoints.forget(checkpoints)
    return [checkpoints.name for checkpoints in obsolete]


def _report_progress(send: Send) -> OnProgress:
    last = 0.0

    def on_progress(progress: Progress) -> None:
        nonlocal last
        now = time.monotonic()
        if progress.step is not None and now - last < PROGRESS_EVERY:
            return
        last = now
        send({"kind": "progress", **progress._asdict()})

    return on_progress
