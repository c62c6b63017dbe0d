"""Gives jobs to an engine, the longest first, stores results in one place, and retries jobs that fail."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kcl.core.files import write_whole
from kcl.engines import RETRIES
from kcl.engines.engine import Engine, Event
from kcl.engines.job import ENDS, Job, Message, Needs
from kcl.engines.status_tracker import StatusTracker
from kcl.experiments.failures import Failure
from kcl.training.stopping import Interrupted, Stop

WAIT = 0.2
"""Seconds between two checks for a signal."""
GRACE = 60.0
"""Seconds that workers have to save after a request to stop."""
MAX_LOG = 100_000
"""Characters kept of the log of a job that fails again and again."""


class Queue:
    """Waiting jobs by their needs; within the same needs in the given order, the longest first."""

    def __init__(self, jobs: Iterable[Job]) -> None:
        self._waiting: dict[Needs, deque[Job]] = {}
        for job in jobs:
            self._waiting.setdefault(job.needs, deque()).append(job)

    def __bool__(self) -> bool:
        return bool(self._waiting)

    @property
    def needs(self) -> list[Needs]:
        return list(self._waiting)

    def take(self, room: Callable[[Needs], bool]) -> Job | None:
        """The longest job that there is room for."""
        for needs in sorted(self._waiting, key=lambda needs: -self._waiting[needs][0].length):
            if room(needs):
                job = self._waiting[needs].popleft()
                if not self._waiting[needs]:
                    del self._waiting[needs]
                return job
        return None

    def put_back(self, job: Job) -> None:
        """A job to retry: it goes first, so that permanent failures show early."""
        self._waiting.setdefault(job.needs, deque()).appendleft(job)


@dataclass
class _History:
    """The attempts at one job."""

    without_progress: int = 0
    tasks: int = 0
    tasks_before: int = 0
    log: str = ""


class Attempts:
    """Counts the failed attempts at each job; an attempt that learned more tasks than before resets the count."""

    def __init__(self, logs: Path, retries: int = RETRIES) -> None:
        self._logs, self._retries = logs, retries
        self._jobs: dict[str, _History] = {}
        self.given_up: list[Failure] = []

    def learned(self, name: str, tasks: int) -> None:
        """A job has learned so many tasks."""
        history = self._jobs.setdefault(name, _History())
        history.tasks = max(history.tasks, tasks)

    def failed(self, job: Job, label: str, worker: str, message: Message) -> Job | None:
        """The next attempt, or None if the job is given up."""
        history, error = self._jobs.setdefault(job.name, _History()), str(message.get("error", "it was lost"))
        entry = f"attempt {job.attempt + 1} on {worker}: {error}\n{message.get('log', '')}"
        history.log = (history.log + entry)[-MAX_LOG:]
        history.without_progress = 0 if history.tasks > history.tasks_before else history.without_progress + 1
        history.tasks_before = history.tasks
        if history.without_progress <= self._retries:
            return job.next_attempt()
        path = self._logs / f"{job.name}.log"
        write_whole(path, history.log.encode(errors="replace"))
        self.given_up.append(Failure(label, len(job.runs), error, path))
        return None

    def done(self, name: str) -> None:
        self._jobs.pop(name, None)


class Dispatcher:
    """`store` takes records and returns those that were new; nothing else calls it."""

    def __init__(
        self,
        engine: Engine,
        store: Callable[[Sequence[dict[str, Any]]], list[dict[str, Any]]],
        tracker: StatusTracker,
        attempts: Attempts,
        stop: Stop | None = None,
    ) -> None:
        self._engine, self._store, self._tracker = engine, store, tracker
        self._attempts, self._stop = attempts, stop or Stop()
        self._running: dict[str, Job] = {}
        self._failed_on: dict[str, str] = {}
        """The worker on which each job failed last."""

    def run(self, jobs: Sequence[Job]) -> None:
        """Return when every job is done or given up. After a signal all jobs save, and `Interrupted` is raised."""
        queue = Queue(jobs)
        self._tracker.jobs_queued(jobs)
        with self._stop.deferred():
            try:
                while queue or self._running:
                    self._stop.check()
                    while (job := queue.take(self._engine.room)) is not None:
                        self._engine.start(job, self._failed_on.get(job.name))
                        self._running[job.name] = job
                        self._tracker.job_started(job)
                    if not self._running:
                        self._tracker.no_room(queue.needs)
                    for job in self._handle(self._engine.wait(WAIT)):
                        queue.put_back(job)
                    self._tracker.tick()
            except Interrupted:
                self._engine.stop()
                deadline = time.monotonic() + GRACE
                while self._running and time.monotonic() < deadline:  # store what is finished meanwhile
                    self._handle(self._engine.wait(WAIT))
                raise

    def _handle(self, events: Sequence[Event]) -> list[Job]:
        """Store all new results at once, and return the jobs to retry."""
        records = [event.message["record"] for event in events if event.message["kind"] == "record"]
        new = {id(record) for record in self._store(records)} if records else set()
        retried = []
        for name, worker, message in events:
            job, kind = self._running.get(name), message["kind"]
            if job is None:
                continue
            if kind == "record":
                if id(message["record"]) in new:
                    self._tracker.result_stored(job, worker, message["record"])
            elif kind in ENDS:
                retried += self._end(job, worker, message)
            else:
                if kind == "progress":
                    self._attempts.learned(name, message["task"] + (message["step"] is None))
                self._tracker.job_progressed(job, worker, message)
        return retried

    def _end(self, job: Job, worker: str, message: Message) -> list[Job]:
        """The next attempt, if there is one."""
        del self._running[job.name]
        following = None
        if message["kind"] == "done":
            self._attempts.done(job.name)
        elif self._stop.signal is None:
            self._failed_on[job.name] = worker
            following = self._attempts.failed(job, self._tracker.label(job), worker, message)
        stopped = message["kind"] != "done" and self._stop.signal is not None
        self._tracker.job_ended(job, worker, message, retry=stopped or following is not None)
        return [] if following is None else [following]
