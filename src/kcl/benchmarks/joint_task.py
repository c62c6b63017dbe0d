"""All tasks of a stream as one, for joint training."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

import torch
from torch import Tensor

from kcl.benchmarks.task import Examples, Task, View
from kcl.core.shapes import Int, Shaped
from kcl.errors import KclError

CHUNK = 8192
"""Samples whose pixels are moved at once; each has its own pixel map."""


@dataclass(frozen=True, kw_only=True)
class JointTask(Task):
    """Every sample keeps the view of its task. Labels encode the task: label = task · (classes of the stream) + class,
    with tasks counted from zero.
    """

    tasks: tuple[Task, ...]
    owners: Int[Tensor, " n"]
    """The task of each training sample."""
    pixel_maps: Int[Tensor, "t p"] | None

    @property
    def parts(self) -> tuple[Task, ...]:
        return self.tasks

    def to(self, device: torch.device, stored: Tensor) -> JointTask:
        maps = None if self.pixel_maps is None else self.pixel_maps.to(device)
        return replace(self, train=self.train.to(device, stored), owners=self.owners.to(device), pixel_maps=maps)

    def moved(self, positions: Int[Tensor, " n"]) -> Shaped[Tensor, "n ..."]:
        if self.pixel_maps is None:
            return self.train.inputs[self.train.rows[positions]]
        parts = []
        for chunk in positions.split(CHUNK):
            stored, maps = self.train.inputs[self.train.rows[chunk]], self.pixel_maps[self.owners[chunk]]
            moved = stored.flatten(1).gather(1, maps.clamp_min(0)) * (maps >= 0)
            parts.append(moved.view(stored.shape))
        return torch.cat(parts)


def join(tasks: Sequence[Task], class_count: int) -> JointTask:
    """Join the tasks of a stream with `class_count` classes. A stored array that tasks share is not copied."""
    for task in tasks:
        task.check()
    if len({(task.view.mean, task.view.std, task.train.inputs.dtype) for task in tasks}) != 1:
        raise KclError("tasks whose samples are stored or scaled differently cannot be trained jointly")
    stored, first_rows = _stored(tasks)
    rows = torch.cat([task.train.rows + first for task, first in zip(tasks, first_rows, strict=True)])
    owners = torch.cat([torch.full((len(task.train),), place) for place, task in enumerate(tasks)])
    labels = torch.cat(
        [place * class_count + torch.tensor(task.classes)[task.train.labels] for place, task in enumerate(tasks)]
    )
    return JointTask(
        index=0,
        train=Examples(stored, rows, labels),
        test=Examples(tasks[0].test.inputs, tasks[0].test.rows[:0], tasks[0].test.labels[:0]),
        classes=tuple(range(class_count)) * len(tasks),
        view=View(mean=tasks[0].view.mean, std=tasks[0].view.std),
        tasks=tuple(tasks),
        owners=owners,
        pixel_maps=_pixel_maps(tasks),
    )


def _stored(tasks: Sequence[Task]) -> tuple[Tensor, list[int]]:
    """One array with every task's samples, and the row at which each task's array begins in it."""
    arrays = {id(task.train.inputs): task.train.inputs for task in tasks}
    if len(arrays) == 1:
        return tasks[0].train.inputs, [0] * len(tasks)
    starts = accumulate(map(len, arrays.values()), initial=0)
    first = dict(zip(arrays, starts, strict=False))
    return torch.cat(list(arrays.values())), [first[id(task.train.inputs)] for task in tasks]


def _pixel_maps(tasks: Sequence[Task]) -> Tensor | None:
    if all(task.view.pixel_map is None for task in tasks):
        return None
    plain = torch.arange(tasks[0].train.inputs[0].numel())
    return torch.stack([plain if task.view.pixel_map is None else task.view.pixel_map for task in tasks])
