"""Jobs, and the interface between the dispatcher and an engine; every engine is one file.

A job is a group of runs for a worker. Jobs and the messages of workers are plain JSON: no executable content travels
between machines.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
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
    plain: bool = False
    resumed: bool = False
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


class RunningJob:
    """A job that an engine has started, and the worker that does it."""

    def __init__(self, job: Job, worker: str) -> None:
        self.job, self.worker = job, worker
        self.end: str | None = None
        """How it ended, one of `ENDS`."""
        self._rest = b""

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

    def read(self, block: bytes) -> list[Event]:
        """Receive the next part of a stream of messages, one line of JSON each."""
        *lines, self._rest = (self._rest + block).split(b"\n")
        return self.receive(map(json.loads, lines))

    def lost(self, error: str, log: str = "") -> list[Event]:
        return self.receive([{"kind": "lost", "error": error, "log": log}])


class Engine(ABC):
    """Runs jobs and reports on them. The last message about every job is one of `ENDS`."""

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
