"""What an engine is to the dispatcher: it hires workers, which do one job at a time. Every engine is one file."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator
from pathlib import Path

from kcl.engines.job import Job, Message, Needs


class Worker(ABC):
    """A process somewhere that does one job after another."""

    def __init__(self, name: str, needs: Needs) -> None:
        self.name, self.needs = name, needs
        self.node = ""
        """Where it is, once it has said so."""
        self.placed = True
        """Whether it has the resources that it needs."""

    @abstractmethod
    def do(self, job: Job) -> Iterator[Message]:
        """Start a job. Returns its messages, for which the iterator waits; the last one is one of `ENDS`."""

    @abstractmethod
    def stop(self) -> None:
        """Ask it to save and end."""

    @abstractmethod
    def close(self) -> None:
        """End it at once."""


class Engine(ABC):
    """Where workers are hired. `most`: of them at the same time."""

    device = "cpu"
    one_job_each = False
    """Whether a worker ends with its job."""

    def __init__(self, most: int | None = None) -> None:
        self.most = most
        self.busy: Collection[Worker] = ()
        """The workers that do a job now, as the dispatcher knows them."""

    def open(self, logs: Path) -> None:  # noqa: B027 - not every engine has something to do
        """Called before the first job; `logs` is the folder for what workers print."""

    def room(self, needs: Needs) -> bool:  # noqa: ARG002
        """Whether a job with these needs would start now."""
        return self.most is None or len(self.busy) < self.most

    @abstractmethod
    def hire(self, needs: Needs, avoid: str | None) -> Worker:
        """A new worker, if possible not on the node `avoid`."""

    def close(self) -> None:  # noqa: B027
        """Called when all workers are closed."""
