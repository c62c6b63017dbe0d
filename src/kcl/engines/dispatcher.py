"""Gives jobs to an engine, the longest first, stores results in one place, and retries jobs that fail."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from kcl.engines.engine import Engine, Event
from kcl.engines.job import ENDS, Job, Message, Needs
from kcl.engines.retries import Attempts
from kcl.engines.status_tracker import StatusTracker
from kcl.training.stopping import Interrupted, Stop

WAIT = 0.2
"""Seconds between two checks for a signal."""
GRACE = 60.0
"""Seconds that workers have to save after a request to stop."""


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
