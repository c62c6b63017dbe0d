"""How far the jobs of a command are: runs queued, running, done and failed; accuracy so far, time left, workers."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kcl.core.files import STATUS, write_json
from kcl.engines.job import Job, Message, Needs
from kcl.errors import KclError
from kcl.experiments import resuming
from kcl.experiments.group_training import Experiment
from kcl.experiments.loggers import Loggers
from kcl.experiments.progress import Display, format_duration
from kcl.experiments.run_folder import Folder
from kcl.training.stream_run import OnProgress, Progress, RunProgress

STATUS_EVERY = 1.0
"""Seconds between two updates of the status."""
WARN_EVERY = 60.0
"""Seconds between two warnings that there is no room for any job."""
WORKERS_SHOWN = 8


@dataclass(eq=False)
class JobState:
    """A job, how far it has come, and its failed attempts."""

    job: Job
    unstored: int
    """Runs whose results are not stored yet."""
    phase: str = "queued"
    """Or running, done, failed."""
    share: float = 0.0
    """The part of the job that the present attempt has done."""
    tasks: int = 0
    """The most tasks learned in any attempt."""
    tasks_before: int = 0
    """`tasks` when the last attempt failed."""
    failures: int = 0
    """Failures in a row without a new task learned."""
    failed_on: str | None = None
    """The node of the last failure."""
    log: str = ""


@dataclass
class WorkerStatus:
    """What one worker has done since its first job."""

    since: float
    runs: int = 0
    doing: str = ""


class StatusTracker:
    """Notified by the dispatcher of everything that happens. Counts runs, not jobs. `clock`: monotonic seconds."""

    def __init__(self, total: int, label: Callable[[Job], str], clock: Callable[[], float] = time.monotonic) -> None:
        self.total, self.label, self._clock = total, label, clock
        self.jobs: list[JobState] = []
        self.workers: dict[str, WorkerStatus] = {}
        self._start = clock()
        self._accuracies: list[float] = []

    def jobs_queued(self, jobs: Sequence[Job]) -> list[JobState]:
        self.jobs, self._start = [JobState(job, len(job.runs)) for job in jobs], self._clock()
        return self.jobs

    def job_progressed(self, state: JobState, worker: str, message: Message) -> None:
        self._worker(worker).doing = self.label(state.job)
        if message["kind"] == "progress":
            within_task = 1.0 if message["step"] is None else message["step"][0] / message["step"][1]
            state.share = (message["task"] + within_task) / message["tasks"]
            state.tasks = max(state.tasks, message["task"] + (message["step"] is None))

    def result_stored(self, state: JobState, worker: str, record: dict[str, Any]) -> None:
        state.unstored -= 1
        self._worker(worker).runs += 1
        if record.get("average_accuracy") is not None:
            self._accuracies.append(record["average_accuracy"])

    def job_ended(self, state: JobState, worker: str, message: Message) -> None:  # noqa: ARG002
        """`state` is done or failed, or queued again."""
        state.share = 0.0 if state.phase == "queued" else 1.0
        if worker in self.workers:
            self.workers[worker].doing = ""

    def tick(self, stuck: Collection[Needs]) -> None:
        """Called in every round. `stuck`: what waiting jobs need, where none is running and none has room."""

    def counts(self) -> dict[str, int]:
        unstored = dict.fromkeys(("queued", "running", "done", "failed"), 0)
        for state in self.jobs:
            unstored[state.phase] += state.unstored
        return unstored | {"done": self.total - unstored["queued"] - unstored["running"] - unstored["failed"]}

    def average_accuracy(self) -> float | None:
        """Of the runs finished since the command started."""
        return sum(self._accuracies) / len(self._accuracies) if self._accuracies else None

    def seconds_left(self) -> float | None:
        """At the present pace; None before it is known."""
        done = sum(state.job.length * state.share for state in self.jobs)
        left = sum(state.job.length for state in self.jobs) - done
        return (self._clock() - self._start) / done * left if done > 0 else None

    def to_dict(self) -> dict[str, Any]:
        now, accuracy, left = self._clock(), self.average_accuracy(), self.seconds_left()
        workers = [
            {"worker": name, "runs": worker.runs, "doing": worker.doing}
            | {"runs_per_hour": round(3600.0 * worker.runs / max(now - worker.since, 1e-9), 2)}
            for name, worker in self.workers.items()
        ]
        return {
            "format": 1,
            "total": self.total,
            **self.counts(),
            "average_accuracy": None if accuracy is None else round(accuracy, 3),
            "seconds_left": None if left is None else round(left, 1),
            "workers": workers,
        }

    def _worker(self, name: str) -> WorkerStatus:
        return self.workers.setdefault(name, WorkerStatus(self._clock()))


class Reporter(StatusTracker):
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
                self._folder.forget(checkpoints, self._experiment.options.checkpoints)
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
