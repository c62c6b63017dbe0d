"""Gives jobs to workers, the longest first, stores results in one place, and retries jobs that fail."""

from __future__ import annotations

import queue
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from kcl.core.files import write_whole
from kcl.engines import RETRIES
from kcl.engines.engine import Engine, Worker
from kcl.engines.job import ENDS, Job, Message, Needs
from kcl.engines.status import JobState, StatusTracker
from kcl.errors import KclError
from kcl.experiments.group_training import Failure
from kcl.training.stopping import Interrupted, Stop

WAIT = 0.2
"""Seconds between two checks for a signal."""
GRACE = 60.0
"""Seconds that workers have to save after a request to stop."""
FINAL_WAIT = 5.0
"""Seconds that they have to clear up after their last message."""
MAX_LOG = 100_000
"""Characters kept of the log of a job that fails again and again."""


class Event(NamedTuple):
    """A message about a job from the worker that does it."""

    state: JobState
    worker: Worker
    message: Message


def take(waiting: list[JobState], room: Callable[[Needs], bool]) -> JobState | None:
    """Remove the first waiting job that there is room for."""
    refused = set[Needs]()
    for place, state in enumerate(waiting):
        if state.job.needs not in refused:
            if room(state.job.needs):
                return waiting.pop(place)
            refused.add(state.job.needs)
    return None


class Dispatcher:
    """Lasts as long as a command, so that workers do the jobs of one call after another.

    A thread for each running job waits for the messages of its worker. A worker whose job failed is closed.
    """

    def __init__(self, engine: Engine, retries: int = RETRIES, stop: Stop | None = None) -> None:
        self.engine, self.retries, self.stop = engine, retries, stop or Stop()
        self._waiting: list[JobState] = []
        self._running: dict[JobState, Worker] = {}
        engine.busy = self._running.values()
        self._idle: list[Worker] = []
        self._refused = False
        """Whether the engine took no further job beside those running; it is asked again when one of them ends."""
        self._given_up: list[Failure] = []
        self._events = queue.SimpleQueue[Event]()
        self._threads: list[threading.Thread] = []

    def run(
        self,
        jobs: Sequence[Job],
        store: Callable[[Sequence[dict[str, Any]]], list[dict[str, Any]]],
        tracker: StatusTracker,
        logs: Path,
    ) -> list[Failure]:
        """Start the jobs, the longest are given first, and return, when every one has ended, those that were given up.
        After a signal all jobs save, and `Interrupted` is raised.

        `store` takes records and returns those that were new; nothing else calls it. `logs`: for jobs given up.
        """
        self._store, self._tracker, self._logs, self._given_up = store, tracker, logs, []
        self._waiting = list(tracker.jobs_queued(jobs))
        with self.stop.deferred():
            try:
                while self._waiting or self._running:
                    self.stop.check()
                    while not self._refused and (state := take(self._waiting, self.engine.room)) is not None:
                        self._start(state)
                    stuck = set() if self._running else {state.job.needs for state in self._waiting}
                    self._handle(self._receive(WAIT))
                    tracker.tick(stuck)
            except Interrupted:
                for worker in self._running.values():
                    worker.stop()
                deadline = time.monotonic() + GRACE
                while self._running and time.monotonic() < deadline:  # store what is finished meanwhile
                    self._handle(self._receive(WAIT))
                raise
        return self._given_up

    def close(self) -> None:
        """End whatever is left, at once."""
        self._release_idle()
        for worker in self._running.values():
            worker.close()
        deadline = time.monotonic() + FINAL_WAIT
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        self.engine.close()

    def _start(self, state: JobState) -> None:
        """Give a job to a worker, if possible not where it has failed."""
        try:
            self._begin(state)
            state.phase = "running"
        except KclError:
            if not self._running:
                raise
            self._waiting.insert(0, state)
            self._refused = True

    def _begin(self, state: JobState) -> None:
        avoid, needs = state.failed_on, state.job.needs
        suitable = [each for each in self._idle if each.needs == needs and (avoid is None or each.node != avoid)]
        if suitable:
            worker = suitable[0]
            self._idle.remove(worker)
        else:
            self._release_idle()  # they hold what the new one needs
            worker = self.engine.hire(needs, avoid)
        messages = worker.do(state.job)
        self._running[state] = worker
        thread = threading.Thread(target=self._follow, args=(state, worker, messages), daemon=True)
        self._threads = [each for each in self._threads if each.is_alive()] + [thread]
        thread.start()

    def _follow(self, state: JobState, worker: Worker, messages: Iterator[Message]) -> None:
        try:
            for message in messages:
                if message["kind"] == "started":
                    worker.name, worker.node = message["worker"], message["node"]
                else:
                    self._events.put(Event(state, worker, message))
        except Exception as error:
            message = {"kind": "lost", "error": f"its messages cannot be read: {error}", "log": traceback.format_exc()}
            self._events.put(Event(state, worker, message))

    def _receive(self, seconds: float) -> list[Event]:
        """The events since the last call; an empty list if nothing happens for so many seconds."""
        events: list[Event] = []
        with suppress(queue.Empty):
            events.append(self._events.get(timeout=seconds))
            while True:
                events.append(self._events.get_nowait())
        if not all(worker.placed for worker in self._running.values()):
            self._release_idle()  # a node was lost, and they hold what is left
        return events

    def _handle(self, events: Sequence[Event]) -> None:
        """Store all new results at once, and follow the jobs."""
        records = [event.message["record"] for event in events if event.message["kind"] == "record"]
        new = {id(record) for record in self._store(records)} if records else set()
        for state, worker, message in events:
            if message["kind"] in ENDS:
                self._end(state, worker, message)
                self._tracker.job_ended(state, worker.name, message)
            elif message["kind"] != "record":
                self._tracker.job_progressed(state, worker.name, message)
            elif id(message["record"]) in new:
                self._tracker.result_stored(state, worker.name, message["record"])

    def _end(self, state: JobState, worker: Worker, message: Message) -> None:
        """Queue a failed job again, or give it up after too many attempts that learned no new task."""
        del self._running[state]
        self._refused, done = False, message["kind"] == "done"
        if done and not self.engine.one_job_each:
            self._idle.append(worker)
        else:
            worker.close()
        state.phase = "done" if done else "queued"
        if done or self.stop.signal is not None:
            return
        error = str(message.get("error", "it was lost"))
        entry = f"attempt {state.job.attempt + 1} on {worker.name}: {error}\n{message.get('log', '')}"
        state.log, state.failed_on = (state.log + entry)[-MAX_LOG:], worker.node or None
        state.failures = 0 if state.tasks > state.tasks_before else state.failures + 1
        state.tasks_before = state.tasks
        if state.failures <= self.retries:
            state.job = state.job.next_attempt()
            self._waiting.insert(0, state)  # first, so that permanent failures show early
        else:
            state.phase, path = "failed", self._logs / f"{state.job.name}.log"
            write_whole(path, state.log.encode(errors="replace"))
            self._given_up.append(Failure(self._tracker.label(state.job), len(state.job.runs), error, path))

    def _release_idle(self) -> None:
        while self._idle:
            self._idle.pop().close()
