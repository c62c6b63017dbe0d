"""What a worker is told and what it answers, as plain JSON: nothing that could run travels between machines."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from typing import Any

from kcl.experiments.run_spec import RunSpec
from kcl.training.checkpointer import Every

Message = dict[str, Any]
"""`kind` is progress, record, say, or one of `ENDS`; the rest belongs to it."""
ENDS = ("done", "failed", "stopped", "lost")
"""The last word about an order: kept; raised; saved because it was asked to stop; the worker is gone."""


@dataclass(frozen=True)
class Needs:
    """What a group takes of the machine it is on."""

    cpus: int = 1
    gpus: float = 0.0
    """Of one GPU: a share, so that several groups fit one with memory enough."""


@dataclass(frozen=True)
class Parcel:
    """Data that a group needs: where they are used, and by which content they are known."""

    benchmark: str
    image_size: int | None
    held_out: float | None
    digest: str
    path: str
    """Where the file lies on the machine that gave the order."""


@dataclass(frozen=True)
class Order:
    """A group of runs to be done, and how."""

    runs: Sequence[dict[str, Any]]
    command: str
    out: str
    parcels: Sequence[Parcel] = ()
    separate: bool = False
    begun: bool = False
    device: str = "cpu"
    threads: int = 1
    runs_at_once: int | None = None
    compiled: bool | None = None
    precision: str = "tf32"
    save_samples: bool = False
    every: Sequence[Any] = (None, None, True)
    force: bool = False
    checkpoints: str | None = None
    """An fsspec URL where the group is saved; None: in the output folder, which all machines see."""
    code: str = ""
    """The digest of the code that gave the order: a machine with other code does not answer it."""
    length: float = 1.0
    """About how long it takes, in whatever unit is the same for all."""
    needs: Needs = Needs()
    notes: dict[str, Any] = field(default_factory=dict)
    """Kept with the results of every run."""
    attempt: int = 0

    @cached_property
    def name(self) -> str:
        """The same for the same group of runs, as the folder of its checkpoints is."""
        keys = "\n".join(json.dumps(run, sort_keys=True) for run in self.runs)
        return hashlib.sha256(keys.encode()).hexdigest()[:16]

    @cached_property
    def specs(self) -> list[RunSpec]:
        return [RunSpec.from_fields(run) for run in self.runs]

    def again(self) -> Order:
        """The next attempt, which may find a checkpoint of the one before."""
        return replace(self, attempt=self.attempt + 1)

    def saves(self) -> Every:
        return Every(*self.every)

    def to_json(self) -> str:
        return json.dumps(asdict(self), allow_nan=False)

    @classmethod
    def from_json(cls, text: str) -> Order:
        fields = json.loads(text)
        parcels = tuple(Parcel(**parcel) for parcel in fields["parcels"])
        own = {"needs": Needs(**fields["needs"]), "parcels": parcels, "every": tuple(fields["every"])}
        return cls(**{**fields, **own})
