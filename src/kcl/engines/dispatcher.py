"""Gives jobs to an engine, the longest first, stores results in one place, and retries jobs that fail.

Tracks how many are queued, running, done and failed; accuracy so far, time left, speed of every worker.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kcl.core.files import write_whole
from kcl.engines import RETRIES
from kcl.engines.engine import ENDS, Engine, Event, Job, Message, Needs
from kcl.errors import KclError
from kcl.experiments.group_training import Failure
from kcl.training.stopping import Interrupted, Stop

WAIT = 0.2
"""Seconds between two checks for a signal."""
GRACE = 60.0
"""Seconds that workers have to save after a request to stop."""
MAX_LOG = 100_000
"""Characters kept of the log of a job that fails again and again."""


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


def take(waiting: list[JobState], room: Callable[[Needs], bool]) -> JobState | None:
    """Remove the first waiting job that there is room for."""
    refused = set[Needs]()
    for place, state in enumerate(waiting):
        if state.job.needs not in refused:
            if room(state.job.needs):
                return waiting.pop(place)
            refused.add(state.job.needs)
    return None


@dataclass
class Dispatcher:
    """`store` takes records and returns those that were new; nothing else calls it."""

    engine: Engine
    store: Callable[[Sequence[dict[str, Any]]], list[dict[str, Any]]]
    tracker: StatusTracker
    logs: Path
    retries: int = RETRIES
    stop: Stop = field(default_factory=Stop)
    _waiting: list[JobState] = field(default_factory=list, init=False)
    _running: dict[str, JobState] = field(default_factory=dict, init=False)
    _refused: bool = field(default=False, init=False)
    """Whether the engine took no further job beside those running; it is asked again when one of them ends."""
    _given_up: list[Failure] = field(default_factory=list, init=False)

    def run(self, jobs: Sequence[Job]) -> list[Failure]:
        """Start the jobs, the longest are given first, and return, when every one has ended, those that were given up.
        After a signal all jobs save, and `Interrupted` is raised.
        """
        self._waiting = list(self.tracker.jobs_queued(jobs))
        with self.stop.deferred():
            try:
                while self._waiting or self._running:
                    self.stop.check()
                    while not self._refused and (state := take(self._waiting, self.engine.room)) is not None:
                        self._start(state)
                    stuck = set() if self._running else {state.job.needs for state in self._waiting}
                    self._handle(self.engine.wait(WAIT))
                    self.tracker.tick(stuck)
            except Interrupted:
                self.engine.stop()
                deadline = time.monotonic() + GRACE
                while self._running and time.monotonic() < deadline:  # store what is finished meanwhile
                    self._handle(self.engine.wait(WAIT))
                raise
        return self._given_up

    def _start(self, state: JobState) -> None:
        try:
            self.engine.start(state.job, state.failed_on)
        except KclError:
            if not self._running:
                raise
            self._waiting.insert(0, state)
            self._refused = True
            return
        state.phase = "running"
        self._running[state.job.name] = state

    def _handle(self, events: Sequence[Event]) -> None:
        """Store all new results at once, and follow the jobs."""
        records = [event.message["record"] for event in events if event.message["kind"] == "record"]
        new = {id(record) for record in self.store(records)} if records else set()
        for name, worker, message in events:
            state, kind = self._running.get(name), message["kind"]
            if state is None:
                continue
            if kind in ENDS:
                del self._running[name]
                self._refused = False
                self._end(state, worker, message)
                self.tracker.job_ended(state, worker, message)
            elif kind != "record":
                self.tracker.job_progressed(state, worker, message)
            elif id(message["record"]) in new:
                self.tracker.result_stored(state, worker, message["record"])

    def _end(self, state: JobState, worker: str, message: Message) -> None:
        """Queue a failed job again, or give it up after too many attempts that learned no new task."""
        state.phase = "done" if message["kind"] == "done" else "queued"
        if state.phase == "done" or self.stop.signal is not None:
            return
        error = str(message.get("error", "it was lost"))
        entry = f"attempt {state.job.attempt + 1} on {worker}: {error}\n{message.get('log', '')}"
        state.log, state.failed_on = (state.log + entry)[-MAX_LOG:], worker
        state.failures = 0 if state.tasks > state.tasks_before else state.failures + 1
        state.tasks_before = state.tasks
        if state.failures <= self.retries:
            state.job = state.job.next_attempt()
            self._waiting.insert(0, state)  # first, so that permanent failures show early
        else:
            state.phase, path = "failed", self.logs / f"{state.job.name}.log"
            write_whole(path, state.log.encode(errors="replace"))
            self._given_up.append(Failure(self.tracker.label(state.job), len(state.job.runs), error, path))
