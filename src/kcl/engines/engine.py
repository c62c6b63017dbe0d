"""The interface between the dispatcher and an engine; every engine is one file."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import NamedTuple

from kcl.engines.job import ENDS, Job, Message, Needs


class Event(NamedTuple):
    """A message of a worker about a job, or about the loss of the worker."""

    job: str
    worker: str
    message: Message


class RunningJob:
    """A job that an engine has started, and the worker that does it."""

    def __init__(self, job: Job, worker: str) -> None:
        self.job, self.worker = job, worker
        self.end: str | None = None
        """How it ended, one of `job.ENDS`."""

    def receive(self, messages: Iterable[Message]) -> list[Event]:
        """The messages as events, except for the first one, in which the worker says its name."""
        events = []
        for message in messages:
            if message["kind"] == "started":
                self.worker = message["worker"]
            else:
                events.append(Event(self.job.name, self.worker, message))
                self.end = message["kind"] if message["kind"] in ENDS else None
        return events

    def lost(self, error: str, log: str = "") -> list[Event]:
        return self.receive([{"kind": "lost", "error": error, "log": log}])


class Engine(ABC):
    """Runs jobs and reports on them. The last message about every job is one of `job.ENDS`."""

    @abstractmethod
    def room(self, needs: Needs) -> bool:
        """Whether a job with these needs would start now."""

    @abstractmethod
    def start(self, job: Job, avoid: str | None = None) -> None:
        """Start a job, if possible not on the worker `avoid`."""

    @abstractmethod
    def wait(self, seconds: float) -> list[Event]:
        """The events since the last call; an empty list if nothing happens for so many seconds."""

    @abstractmethod
    def stop(self) -> None:
        """Ask every job to save and end; `wait` reports when they have."""

    @abstractmethod
    def close(self) -> None:
        """End whatever is left, at once."""
