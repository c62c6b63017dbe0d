"""Groups trained by the workers of an engine: groups become jobs; messages become results, logs and a status."""

from __future__ import annotations

import math
import time
from collections.abc import Collection, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from kcl.core.files import STATUS, write_json
from kcl.engines.dataset_file import DatasetFile, pack
from kcl.engines.dispatcher import Dispatcher, JobState, StatusTracker
from kcl.engines.engine import Engine, Job, Message, Needs
from kcl.errors import KclError
from kcl.experiments import resuming
from kcl.experiments.admission import RunPlan, dataset_key, step_count
from kcl.experiments.group_training import LOGS, Experiment, Failure
from kcl.experiments.loggers import Loggers
from kcl.experiments.progress import Display, format_duration
from kcl.experiments.run_folder import Folder
from kcl.experiments.run_spec import RunGroup
from kcl.experiments.speeds import TOGETHER, speed_of
from kcl.methods.views import copies_at_test, rotations
from kcl.training.stopping import Stop
from kcl.training.stream_run import OnProgress, Progress, RunProgress

GROUP_SIZE = 20
"""Trainings per group for a GPU whose memory is not known; the worker splits a group that does not fit."""
STATUS_EVERY = 1.0
"""Seconds between two updates of the status."""
WARN_EVERY = 60.0
"""Seconds between two warnings that there is no room for any job."""
WORKERS_SHOWN = 8


def run_distributed(
    experiment: Experiment, jobs: Sequence[Job], engine: Engine, retries: int, folder: Folder, display: Display,
    loggers: Loggers,
) -> list[Failure]:  # fmt: skip
    """Train the groups of the jobs and return those that were given up."""
    tracker, stop = _Reporter(experiment, folder, display, loggers), experiment.saving.stop or Stop()
    try:
        return Dispatcher(engine, folder.add_new, tracker, folder.path / LOGS, retries, stop).run(jobs)
    finally:
        with suppress(OSError):
            (folder.path / STATUS).unlink(missing_ok=True)


def make_jobs(experiment: Experiment, groups: Sequence[RunGroup], gpu_gigabytes: float | None = None) -> list[Job]:
    """The longest job first, so that the last ones end at about the same time. `gpu_gigabytes`: memory of one GPU."""
    plan, files = experiment.plan, {}
    for key, dataset in plan.datasets.items():
        digest, path = pack(dataset)
        files[key] = DatasetFile(key, digest, str(path.resolve()))
    jobs = [
        Job(
            runs=[spec.fields() for spec in group.specs],
            command=experiment.command,
            out=str(experiment.store.path.resolve()),
            datasets=tuple(files[key] for key in dict.fromkeys(map(dataset_key, group.specs))),
            compute=plan.compute,
            threads=torch.get_num_threads(),
            save_samples=experiment.save_samples,
            saving=experiment.saving._replace(stop=None),
            code=resuming.code(),
            length=estimate_length(plan, group),
            needs=estimate_needs(plan, group, gpu_gigabytes),
            notes=dict(experiment.notes),
        )
        for group in groups
    ]
    return sorted(jobs, key=lambda job: -job.length)


def estimate_length(plan: RunPlan, group: RunGroup) -> float:
    """Seconds on the machine that was measured."""
    spec = group.specs[0]
    speed = speed_of(spec.settings.backbone)
    steps = step_count(spec.settings, sum(size.train for size in plan.task_sizes[spec.key])) * rotations(spec.settings)
    rounds = math.ceil(len(group.trainings) / TOGETHER)
    return steps * (speed.kcl if spec.method == "kcl" else speed.others) / 1e3 * rounds


def estimate_needs(plan: RunPlan, group: RunGroup, gpu_gigabytes: float | None) -> Needs:
    """As many CPUs as threads, and on a GPU the share of its memory; the whole GPU if its memory is not known. Testing
    with several views of a sample multiplies the memory.
    """
    threads = torch.get_num_threads()
    if plan.compute.on_cpu:
        return Needs(threads)
    if gpu_gigabytes is None:
        return Needs(threads, 1.0)
    views = max(copies_at_test(spec.settings) for spec in group.specs)
    gigabytes = speed_of(group.specs[0].settings.backbone).gigabytes / TOGETHER * views * len(group.trainings)
    return Needs(threads, min(1.0, math.ceil(100 * gigabytes / gpu_gigabytes) / 100))


class _Reporter(StatusTracker):
    """Also updates loggers, display and status file, and removes checkpoints that are no longer needed."""

    def __init__(self, experiment: Experiment, folder: Folder, display: Display, loggers: Loggers) -> None:
        super().__init__(len(experiment.plan.specs), lambda job: experiment.plan.group_label(job.specs))
        self._experiment, self._folder, self._display, self._loggers = experiment, folder, display, loggers
        self._log_progress: dict[str, OnProgress] = {}
        self._status_time, self._warning_time = 0.0, -WARN_EVERY

    def job_progressed(self, state: JobState, worker: str, message: Message) -> None:
        super().job_progressed(state, worker, message)
        name = state.job.name
        if name not in self._log_progress:
            self._log_progress[name] = self._loggers.follow(self._experiment.plan, state.job.specs)
        if message["kind"] == "say":
            self._display.say(f"{worker}: {message['text']}")
        elif message["step"] is None and len(message["runs"]) == len(state.job.runs):
            runs = tuple(RunProgress(*run) for run in message["runs"])
            progress = Progress(message["task"], message["tasks"], None, message["average_accuracy"], runs)
            self._log_progress[name](progress)

    def job_ended(self, state: JobState, worker: str, message: Message) -> None:
        super().job_ended(state, worker, message)
        self._log_progress.pop(state.job.name, None)
        if message["kind"] == "done":
            for name in message["checkpoints"]:
                checkpoints = self._folder.path / resuming.FOLDER / Path(str(name)).name
                self._folder.forget(checkpoints, self._experiment.saving.checkpoints)
        elif message["kind"] in ("failed", "lost"):
            then = "giving up" if state.phase == "failed" else "trying again"
            self._display.say(f"{self.label(state.job)} on {worker}: {message.get('error')}; {then}")

    def tick(self, stuck: Collection[Needs]) -> None:
        now = time.monotonic()
        if stuck and now - self._warning_time >= WARN_EVERY:  # a node may still join
            self._warning_time = now
            least = min(stuck, key=lambda each: (each.gpus, each.cpus))
            gpu = f" and {least.gpus:g} of a GPU" if least.gpus else ""
            self._display.say(f"waiting for a worker with {least.cpus} free CPUs{gpu}, which a group needs")
        if now - self._status_time < STATUS_EVERY:
            return
        self._status_time = now
        status = self.to_dict()
        self._display.show_status(status_lines(status))
        with suppress(KclError):  # a status that cannot be written must not end a run
            write_json(self._folder.path / STATUS, status | {"time": time.time()})


def status_lines(status: dict[str, Any]) -> list[str]:
    """The status for a terminal: one line about all runs, then one for each busy worker."""
    parts = [f"{status[name]} {name}" for name in ("queued", "running", "done")]
    if status["failed"]:
        parts.append(f"{status['failed']} failed")
    if status["average_accuracy"] is not None:
        parts.append(f"average accuracy {status['average_accuracy']:.2f} %")
    if status["seconds_left"] is not None:
        parts.append(f"about {format_duration(status['seconds_left'])} left")
    workers = [worker for worker in status["workers"] if worker["doing"]][:WORKERS_SHOWN]
    return [
        ", ".join(parts),
        *(
            f"  {worker['worker']}: {worker['runs']} runs, {worker['runs_per_hour']:.1f} an hour, {worker['doing']}"
            for worker in workers
        ),
    ]
