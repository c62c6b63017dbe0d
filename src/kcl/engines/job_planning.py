"""Groups of runs as jobs, with the resources that each needs and an estimate of how long it takes."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from kcl.engines.dataset_file import DatasetFile, pack
from kcl.engines.job import Job, Needs
from kcl.experiments import resuming
from kcl.experiments.admission import RunPlan, dataset_key
from kcl.experiments.grouping import Experiment, RunGroup
from kcl.experiments.speeds import TOGETHER as MEASURED
from kcl.experiments.speeds import speed_of
from kcl.methods.views import copies_at_test, rotations


def make_jobs(experiment: Experiment, groups: Sequence[RunGroup], gpu_gigabytes: float | None = None) -> list[Job]:
    """The longest job first, so that the last ones end at about the same time. `gpu_gigabytes`: memory of one GPU."""
    plan, saving = experiment.plan, experiment.saving
    files = {}
    for key, dataset in plan.datasets.items():
        digest, path = pack(dataset)
        files[key] = DatasetFile(key, digest, str(path.resolve()))
    jobs = [
        Job(
            runs=[spec.fields() for spec in group.specs],
            command=experiment.command,
            out=str(experiment.store.path.resolve()),
            datasets=tuple(files[key] for key in dict.fromkeys(map(dataset_key, group.specs))),
            compute=plan.compute,
            plain=group.plain,
            resumed=group.resumed,
            threads=torch.get_num_threads(),
            save_samples=experiment.save_samples,
            every=tuple(saving.every),
            force=saving.force,
            checkpoints=saving.checkpoints,
            code=resuming.code(),
            length=length(plan, group),
            needs=needs(plan, group, gpu_gigabytes),
            notes=dict(experiment.notes),
        )
        for group in groups
    ]
    return sorted(jobs, key=lambda job: -job.length)


def length(plan: RunPlan, group: RunGroup) -> float:
    """Seconds on the machine that was measured."""
    spec = group.specs[0]
    speed = speed_of(spec.settings.backbone)
    steps = plan.steps(spec) * rotations(spec.settings)
    rounds = math.ceil(len(group.trainings) / MEASURED)
    return steps * (speed.kcl if spec.method == "kcl" else speed.others) / 1e3 * rounds


def needs(plan: RunPlan, group: RunGroup, gpu_gigabytes: float | None) -> Needs:
    """As many CPUs as threads, and on a GPU the share of its memory; the whole GPU if its memory is not known. Testing
    with several views of a sample multiplies the memory.
    """
    threads = torch.get_num_threads()
    if plan.compute.on_cpu:
        return Needs(threads)
    if gpu_gigabytes is None:
        return Needs(threads, 1.0)
    views = max(copies_at_test(spec.settings) for spec in group.specs)
    gigabytes = speed_of(group.specs[0].settings.backbone).gigabytes / MEASURED * views * len(group.trainings)
    return Needs(threads, min(1.0, math.ceil(100 * gigabytes / gpu_gigabytes) / 100))
