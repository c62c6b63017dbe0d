"""Gives jobs to an engine, the longest first, stores results in one place, and retries jobs that fail."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kcl.core.files import write_whole
from kcl.engines import RETRIES
from kcl.engines.engine import Engine, Event
from kcl.engines.job import ENDS, Job, Message, Needs
from kcl.engines.status_tracker import JobState, StatusTracker
from kcl.experiments.group_training import Failure
from kcl.training.stopping import Interrupted, Stop

WAIT = 0.2
"""Seconds between two checks for a signal."""
GRACE = 60.0
"""Seconds that workers have to save after a request to stop."""
MAX_LOG = 100_000
"""Characters kept of the log of a job that fails again and again."""


def take(waiting: list[JobState], room: Callable[[Needs], bool]) -> JobState | None:
    """Remove the first waiting job that there is room for."""
    fits = {needs: room(needs) for needs in needs_of(waiting)}
    for place, state in enumerate(waiting):
        if fits[state.job.needs]:
            return waiting.pop(place)
    return None


def needs_of(waiting: Iterable[JobState]) -> list[Needs]:
    return list(dict.fromkeys(state.job.needs for state in waiting))


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
                    while (state := take(self._waiting, self.engine.room)) is not None:
                        self.engine.start(state.job, state.failed_on)
                        self._running[state.job.name] = state
                        self.tracker.job_started(state)
                    if not self._running:
                        self.tracker.no_room(needs_of(self._waiting))
                    self._handle(self.engine.wait(WAIT))
                    self.tracker.tick()
            except Interrupted:
                self.engine.stop()
                deadline = time.monotonic() + GRACE
                while self._running and time.monotonic() < deadline:  # store what is finished meanwhile
                    self._handle(self.engine.wait(WAIT))
                raise
        return self._given_up

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
