"""Jobs, workers, and what all engines have in common; every engine is one file.

A job is a group of runs for a worker. Jobs and the messages of workers are plain JSON: no executable content travels
between machines.
"""

from __future__ import annotations

import json
import queue
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from kcl.core.devices import Compute
from kcl.engines.dataset_file import DatasetFile
from kcl.experiments import resuming
from kcl.experiments.resuming import Saving
from kcl.experiments.run_spec import RunSpec
from kcl.training.checkpointer import Every

Message = dict[str, Any]
"""`kind` is started, progress, record, say, or one of `ENDS`; the other fields depend on it."""
ENDS = ("done", "failed", "stopped", "lost")
"""The last message about a job: finished; raised an error; saved after a request to stop; the worker is gone."""
FINAL_WAIT = 5.0
"""Seconds to wait for what a worker leaves after its last message."""


@dataclass(frozen=True)
class Needs:
    """The resources of a machine that a job takes."""

    cpus: int = 1
    gpus: float = 0.0
    """A share of one GPU, so that several jobs can share a GPU with enough memory."""


@dataclass(frozen=True)
class Job:
    """A group of runs to train, and how."""

    runs: Sequence[dict[str, Any]]
    command: str
    out: str
    datasets: Sequence[DatasetFile] = ()
    compute: Compute = field(default_factory=Compute)
    threads: int = 1
    save_samples: bool = False
    saving: Saving = field(default_factory=Saving)
    """Without a `Stop`: the worker has its own."""
    code: str = ""
    """The digest of the code of the command: a worker with other code refuses the job."""
    length: float = 1.0
    """An estimate of the time it takes; only the ratios between jobs matter."""
    needs: Needs = Needs()
    notes: dict[str, Any] = field(default_factory=dict)
    """Added to the result of every run."""
    attempt: int = 0

    @cached_property
    def name(self) -> str:
        """The same for the same group of runs, and equal to the name of its checkpoint folder."""
        return resuming.group_name([json.dumps(run, sort_keys=True) for run in self.runs])

    @cached_property
    def specs(self) -> list[RunSpec]:
        return [RunSpec.from_fields(run) for run in self.runs]

    def next_attempt(self) -> Job:
        return replace(self, attempt=self.attempt + 1)

    def to_json(self) -> str:
        return json.dumps(asdict(self), allow_nan=False)

    @classmethod
    def from_json(cls, text: str) -> Job:
        fields = json.loads(text)
        datasets = tuple(DatasetFile(tuple(file["key"]), file["digest"], file["path"]) for file in fields["datasets"])
        every, *others = fields["saving"]
        fields |= {"datasets": datasets, "saving": Saving(Every(*every), *others)}
        return cls(**fields | {"needs": Needs(**fields["needs"]), "compute": Compute(**fields["compute"])})


class Event(NamedTuple):
    """A message of a worker about a job, or about the loss of the worker."""

    job: str
    worker: str
    message: Message


class Worker(ABC):
    """A process somewhere that does one job after another."""

    def __init__(self, name: str, needs: Needs) -> None:
        self.name, self.needs = name, needs
        self.node = ""
        """Where it is, once it has said so."""

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
    """Hires workers and gives them jobs. A thread for each running job waits for the messages of its worker.

    The last message about every job is one of `ENDS`. A worker whose job failed is closed, the others are used again.
    """

    device = "cpu"
    one_job_each = False
    """Whether a worker ends with its job."""

    def __init__(self, most: int | None = None) -> None:
        self.most = most
        self.running: dict[str, Worker] = {}
        """By the name of the job."""
        self._idle: list[Worker] = []
        self._nodes: dict[str, str] = {}
        """Where each worker is or was, by its name."""
        self._events = queue.SimpleQueue[Event]()
        self._threads: list[threading.Thread] = []

    def open(self, logs: Path) -> None:  # noqa: B027 - not every engine has something to do
        """Called before the first job; `logs` is the folder for what workers print."""

    @abstractmethod
    def hire(self, needs: Needs, avoid: str | None) -> Worker:
        """A new worker, if possible not on the node `avoid`."""

    def room(self, needs: Needs) -> bool:  # noqa: ARG002
        """Whether a job with these needs would start now."""
        return self.most is None or len(self.running) < self.most

    def start(self, job: Job, avoid: str | None = None) -> None:
        """Start a job, if possible not where the worker `avoid` is."""
        node = self._nodes.get(avoid or "")
        suitable = [each for each in self._idle if each.needs == job.needs and (node is None or each.node != node)]
        if suitable:
            worker = suitable[0]
            self._idle.remove(worker)
        else:
            self.release_idle()  # they hold what the new one needs
            worker = self.hire(job.needs, node)
        messages = worker.do(job)
        self.running[job.name] = worker
        thread = threading.Thread(target=self._follow, args=(job.name, worker, messages), daemon=True)
        self._threads = [each for each in self._threads if each.is_alive()] + [thread]
        thread.start()

    def _follow(self, job: str, worker: Worker, messages: Iterator[Message]) -> None:
        for message in messages:
            if message["kind"] == "started":
                worker.name, worker.node = message["worker"], message["node"]
                self._nodes[worker.name] = worker.node
            else:
                self._events.put(Event(job, worker.name, message))

    def wait(self, seconds: float) -> list[Event]:
        """The events since the last call; an empty list if nothing happens for so many seconds."""
        events: list[Event] = []
        with suppress(queue.Empty):
            events.append(self._events.get(timeout=seconds))
            while True:
                events.append(self._events.get_nowait())
        for event in events:
            if event.message["kind"] in ENDS:
                worker = self.running.pop(event.job)
                if event.message["kind"] == "done" and not self.one_job_each:
                    self._idle.append(worker)
                else:
                    worker.close()
        return events

    def stop(self) -> None:
        """Ask every job to save and end; `wait` reports when they have."""
        for worker in self.running.values():
            worker.stop()

    def release_idle(self) -> None:
        while self._idle:
            self._idle.pop().close()

    def close(self) -> None:
        """End whatever is left, at once."""
        self.release_idle()
        for worker in self.running.values():
            worker.close()
        for thread in self._threads:
            thread.join(FINAL_WAIT)
