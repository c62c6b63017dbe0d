"""The status of a set of jobs: queued, running, done, failed; accuracy so far, time left, speed of every worker."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from kcl.engines.job import Job, Message, Needs


@dataclass
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
    """The worker of the last failure."""
    log: str = ""


@dataclass
class WorkerStatus:
    """What one worker has done since its first job."""

    since: float
    runs: int = 0
    doing: str = ""

    def to_dict(self, name: str, now: float) -> dict[str, Any]:
        per_hour = 3600.0 * self.runs / max(now - self.since, 1e-9)
        return {"worker": name, "runs": self.runs, "runs_per_hour": round(per_hour, 2), "doing": self.doing}


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

    def job_started(self, state: JobState) -> None:
        state.phase = "running"

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

    def no_room(self, needs: Sequence[Needs]) -> None:
        """No job is running, and there is no room for those that wait, which have these needs."""

    def tick(self) -> None:
        """Called after every round of events."""

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
        return {
            "format": 1,
            "total": self.total,
            **self.counts(),
            "average_accuracy": None if accuracy is None else round(accuracy, 3),
            "seconds_left": None if left is None else round(left, 1),
            "workers": [worker.to_dict(name, now) for name, worker in self.workers.items()],
        }

    def _worker(self, name: str) -> WorkerStatus:
        return self.workers.setdefault(name, WorkerStatus(self._clock()))
