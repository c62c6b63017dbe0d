"""What a worker is sent and what it answers, as plain JSON: no executable content travels between machines."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from typing import Any

from kcl.core.compute import Compute
from kcl.engines.dataset_file import DatasetFile
from kcl.experiments.resuming import group_name
from kcl.experiments.run_spec import RunSpec

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
    every: Sequence[Any] = (None, None, True)
    """The fields of `Every`."""
    force: bool = False
    checkpoints: str | None = None
    """An fsspec URL for checkpoints; None: the output folder, which all machines share."""
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
        return group_name([json.dumps(run, sort_keys=True) for run in self.runs])

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
        fields |= {"needs": Needs(**fields["needs"]), "compute": Compute(**fields["compute"])}
        return cls(**{**fields, "datasets": datasets, "every": tuple(fields["every"])})
