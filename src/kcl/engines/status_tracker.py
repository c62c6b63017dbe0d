"""The status of a set of jobs: queued, running, done, failed; accuracy so far, time left, speed of every worker."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from kcl.engines.job import Job, Message, Needs


class WorkerStatus:
    """What one worker has done since its first job."""

    def __init__(self, now: float) -> None:
        self.since, self.runs, self.doing = now, 0, ""

    def to_dict(self, name: str, now: float) -> dict[str, Any]:
        per_hour = 3600.0 * self.runs / max(now - self.since, 1e-9)
        return {"worker": name, "runs": self.runs, "runs_per_hour": round(per_hour, 2), "doing": self.doing}


class StatusTracker:
    """Notified by the dispatcher of everything that happens. Counts runs, not jobs. `clock`: monotonic seconds."""

    def __init__(
        self, done: int, total: int, label: Callable[[Job], str], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.total, self.done, self.failed, self.running, self.label, self._clock = total, done, 0, 0, label, clock
        self.workers: dict[str, WorkerStatus] = {}
        self._length, self._finished_length, self._start = 0.0, 0.0, clock()
        self._partial_length: dict[str, float] = {}
        self._unstored: dict[str, int] = {}
        """Runs of each job whose results are not stored yet."""
        self._accuracies: list[float] = []

    @property
    def queued(self) -> int:
        return self.total - self.done - self.failed - self.running

    @property
    def average_accuracy(self) -> float | None:
        """Of the runs finished since the command started."""
        return sum(self._accuracies) / len(self._accuracies) if self._accuracies else None

    def jobs_queued(self, jobs: Sequence[Job]) -> None:
        self._length, self._start = sum(job.length for job in jobs), self._clock()

    def job_started(self, job: Job) -> None:
        self.running += self._unstored.setdefault(job.name, len(job.runs))

    def job_progressed(self, job: Job, worker: str, message: Message) -> None:
        self._worker(worker).doing = self.label(job)
        if message["kind"] == "progress":
            within_task = 1.0 if message["step"] is None else message["step"][0] / message["step"][1]
            self._partial_length[job.name] = job.length * (message["task"] + within_task) / message["tasks"]

    def result_stored(self, job: Job, worker: str, record: dict[str, Any]) -> None:
        self.done += 1
        self.running -= 1
        self._unstored[job.name] -= 1
        self._worker(worker).runs += 1
        if record.get("average_accuracy") is not None:
            self._accuracies.append(record["average_accuracy"])

    def job_ended(self, job: Job, worker: str, message: Message, retry: bool) -> None:
        self._partial_length.pop(job.name, None)
        self.running -= self._unstored[job.name]
        if worker in self.workers:
            self.workers[worker].doing = ""
        if not retry:
            self._finished_length += job.length
            unstored = self._unstored.pop(job.name)
            self.failed += 0 if message["kind"] == "done" else unstored

    def no_room(self, needs: Sequence[Needs]) -> None:
        """No job is running, and there is no room for those that wait, which have these needs."""

    def tick(self) -> None:
        """Called after every round of events."""

    def seconds_left(self) -> float | None:
        """At the present pace; None before it is known."""
        done = self._finished_length + sum(self._partial_length.values())
        return (self._clock() - self._start) / done * (self._length - done) if done > 0 else None

    def to_dict(self) -> dict[str, Any]:
        now, left = self._clock(), self.seconds_left()
        return {
            "format": 1,
            **{name: getattr(self, name) for name in ("total", "queued", "running", "done", "failed")},
            "average_accuracy": None if self.average_accuracy is None else round(self.average_accuracy, 3),
            "seconds_left": None if left is None else round(left, 1),
            "workers": [worker.to_dict(name, now) for name, worker in self.workers.items()],
        }

    def _worker(self, name: str) -> WorkerStatus:
        return self.workers.setdefault(name, WorkerStatus(self._clock()))
