"""Jobs: groups of runs for workers, what they need and how long they take.

Jobs and the messages of workers are plain JSON: no executable content travels between machines.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from typing import Any

import torch

from kcl.core.devices import Compute
from kcl.engines.dataset_file import DatasetFile, pack
from kcl.experiments import resuming
from kcl.experiments.admission import RunPlan, dataset_key
from kcl.experiments.group_training import Experiment
from kcl.experiments.resuming import RunOptions
from kcl.experiments.run_spec import RunGroup, RunSpec
from kcl.experiments.speeds import TOGETHER, speed_of
from kcl.methods.training_compute import Shape, training_compute
from kcl.methods.views import copies_at_test
from kcl.training.checkpointer import Every

Message = dict[str, Any]
"""`kind` is started, progress, record, say, or one of `ENDS`; the other fields depend on it."""
ENDS = ("done", "failed", "stopped", "lost")
"""The last message about a job: finished; raised an error; saved after a request to stop; the worker is gone."""
GROUP_SIZE = 20
"""Trainings per group for a GPU whose memory is not known; the worker splits a group that does not fit."""


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
    out: str
    options: RunOptions = field(default_factory=RunOptions)
    """Without a `Stop`: the worker has its own."""
    datasets: Sequence[DatasetFile] = ()
    compute: Compute = field(default_factory=Compute)
    threads: int = 1
    code: str = ""
    """The digest of the code of the command: a worker with other code refuses the job."""
    length: float = 1.0
    """An estimate of the time it takes; only the ratios between jobs matter."""
    needs: Needs = Needs()
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
        every, *others = fields["options"]
        fields |= {"datasets": datasets, "options": RunOptions(Every(*every), *others)}
        return cls(**fields | {"needs": Needs(**fields["needs"]), "compute": Compute(**fields["compute"])})


def make_jobs(experiment: Experiment, groups: Sequence[RunGroup], gpu_gigabytes: float | None = None) -> list[Job]:
    """The longest job first, so that the last ones end at about the same time. `gpu_gigabytes`: memory of one GPU."""
    plan, files = experiment.plan, {}
    for key, dataset in plan.datasets.items():
        digest, path = pack(dataset)
        files[key] = DatasetFile(key, digest, str(path.resolve()))
    jobs = [
        Job(
            runs=[spec.fields() for spec in group.specs],
            out=str(experiment.store.path.resolve()),
            options=experiment.options._replace(stop=None),
            datasets=tuple(files[key] for key in dict.fromkeys(map(dataset_key, group.specs))),
            compute=plan.compute,
            threads=torch.get_num_threads(),
            code=resuming.code(),
            length=estimate_length(plan, group),
            needs=estimate_needs(plan, group, gpu_gigabytes),
        )
        for group in groups
    ]
    return sorted(jobs, key=lambda job: -job.length)


def estimate_length(plan: RunPlan, group: RunGroup) -> float:
    """Seconds on the machine that was measured."""
    spec = group.specs[0]
    tasks = [Shape(size.train, size.ways) for size in plan.task_sizes[spec.key]]
    compute = training_compute(spec.method, spec.settings, tasks)
    return speed_of(spec.settings.backbone).training(compute.updates, compute.images_per_update, len(group.trainings))


def estimate_needs(plan: RunPlan, group: RunGroup, gpu_gigabytes: float | None) -> Needs:
    """As many CPUs as threads, and on a GPU the share of its memory; the whole GPU if its memory is not known. Testing
    with several views of a sample multiplies the memory.
    """
    threads = torch.get_num_threads()
    if plan.compute.on_cpu:
        return Needs(threads)
    if gpu_gigabytes is None:
        return Needs(threads, 1.0)
    views = max(copies_at_test(spec.settings) for spec in group.specs)
    gigabytes = speed_of(group.specs[0].settings.backbone).gigabytes / TOGETHER * views * len(group.trainings)
    return Needs(threads, min(1.0, math.ceil(100 * gigabytes / gpu_gigabytes) / 100))
