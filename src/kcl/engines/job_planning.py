"""Work cut into orders: groups of runs that train together, with what each needs and about how long it takes."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from kcl.engines import dataset_file
from kcl.engines.job import Needs, Order, Parcel
from kcl.experiments import resuming
from kcl.experiments.experiment import Experiment, Group, dataset_name
from kcl.experiments.resuming import Saving
from kcl.experiments.run_spec import by_training
from kcl.experiments.speeds import TOGETHER as MEASURED
from kcl.experiments.speeds import speed_of
from kcl.methods.views import copies_at_test, rotations

TOGETHER = 20
"""Runs of a group for a GPU that nobody has looked at; the worker cuts it further if they do not fit."""


def orders(
    experiment: Experiment, groups: Sequence[Group], out: str, saving: Saving, gpu_gigabytes: float | None = None
) -> list[Order]:
    """The groups as orders, the longest first: what is begun last should end soon. `gpu_gigabytes`: of one GPU."""
    packed = {name: dataset_file.pack(dataset) for name, dataset in experiment.datasets.items()}
    parcels = {name: Parcel(*name, digest, str(path.resolve())) for name, (digest, path) in packed.items()}
    made = [
        Order(
            runs=[spec.fields() for spec in group.specs],
            command=experiment.command,
            out=out,
            parcels=tuple(parcels[name] for name in dict.fromkeys(dataset_name(spec) for spec in group.specs)),
            separate=group.separate,
            begun=group.begun,
            device=experiment.device.type,
            threads=torch.get_num_threads(),
            runs_at_once=experiment.runs_at_once,
            compiled=experiment.compiled,
            precision=experiment.precision,
            save_samples=experiment.save_samples,
            every=tuple(saving.every),
            force=saving.force,
            checkpoints=saving.checkpoints,
            code=resuming.code(),
            length=length(experiment, group),
            notes=experiment.notes,
            needs=needs(experiment, group, gpu_gigabytes),
        )
        for group in groups
    ]
    return sorted(made, key=lambda order: -order.length)


def length(experiment: Experiment, group: Group) -> float:
    """Seconds, were the machine the one that was measured; on a CPU runs are done one after another."""
    spec, trainings = group.specs[0], len(by_training(group.specs))
    speed = speed_of(spec.settings.backbone)
    steps = experiment.planned_steps(spec) * rotations(spec.settings)
    at_a_time = MEASURED if experiment.device.type == "cuda" and not group.separate else 1
    return steps * (speed.kcl if spec.method == "kcl" else speed.others) / 1e3 * math.ceil(trainings / at_a_time)


def needs(experiment: Experiment, group: Group, gpu_gigabytes: float | None) -> Needs:
    """As many CPUs as threads; of a GPU the share that its memory takes, all of it where that is not known. Of samples
    shown in several views, as many times as much as of one.
    """
    threads = torch.get_num_threads()
    if experiment.device.type == "cpu":
        return Needs(threads)
    if gpu_gigabytes is None:
        return Needs(threads, 1.0)
    backbone, copies = group.specs[0].settings.backbone, max(copies_at_test(spec.settings) for spec in group.specs)
    each = speed_of(backbone).gigabytes / MEASURED * copies
    runs = 1 if group.separate else len(by_training(group.specs))
    return Needs(threads, min(1.0, math.ceil(100 * each * runs / gpu_gigabytes) / 100))
