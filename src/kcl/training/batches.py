"""The batches of a task: their sizes, and the order in which each run visits its samples."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor, nn

from kcl.benchmarks.task import Task
from kcl.core.randomness import numpy_generator
from kcl.core.shapes import Int, Shaped
from kcl.errors import KclError
from kcl.methods.method import Plan


class CannotStack(Exception):
    """These runs cannot be trained together; they can be trained one after another."""


def batch_sizes(model: nn.Module, length: int, batch: int) -> list[int]:
    """The batch sizes of an epoch; the last may be smaller. BatchNorm has no statistics for a single sample, so with it
    a last batch of one joins the batch before.
    """
    sizes = [batch] * (length // batch) + [length % batch] * (length % batch > 0)
    if sizes[-1] == 1 and getattr(model.get_submodule("backbone"), "mixes_samples", False):
        if len(sizes) == 1 or batch == 1:
            raise KclError("a backbone with BatchNorm needs training batches of at least two samples")
        sizes[-2:] = [sizes[-2] + 1]
    return sizes


def batch_order(seed: int, task_index: int, epoch: int, positions: np.ndarray) -> np.ndarray:
    """The training positions in the order in which a run visits them in an epoch."""
    return numpy_generator(seed, "batch order", task_index, epoch).permutation(positions)


class TaskExamples:
    """The training samples of one task for every run, in the order of each epoch."""

    def __init__(
        self,
        tasks: Sequence[Task],
        positions: Sequence[np.ndarray],
        seeds: Sequence[int],
        epochs: int,
        on_device: Callable[[Task], Task],
    ) -> None:
        """`positions`: which training samples each run learns from; `on_device`: moves the tensors of a task."""
        if len({len(rows) for rows in positions}) != 1 or len({id(task.train.inputs) for task in tasks}) != 1:
            raise CannotStack("the runs have training sets of different sizes or from different arrays")
        self.tasks, self.positions, self.seeds, self.epochs = tasks, positions, seeds, epochs
        self.length = len(positions[0])
        self.shape, self.dtype = tasks[0].train.inputs.shape[1:], tasks[0].train.inputs.dtype
        self._on_device = on_device
        self._orders: dict[tuple[int, int], np.ndarray] = {}

    def orders(self, run: int) -> list[np.ndarray]:
        """The order of every epoch of a run."""
        return [self._order(run, epoch) for epoch in range(self.epochs)]

    def _order(self, run: int, epoch: int) -> np.ndarray:
        if (run, epoch) not in self._orders:  # used by the plan and by the batches
            self._orders[run, epoch] = batch_order(self.seeds[run], self.tasks[run].index, epoch, self.positions[run])
        return self._orders[run, epoch]

    def on_device(self, run: int) -> Task:
        return self._on_device(self.tasks[run])

    def in_order(self, epoch: int) -> tuple[Shaped[Tensor, "s n ..."], Int[Tensor, "s n"]]:
        """All samples and labels of an epoch, in the order in which each run visits them."""
        inputs, labels = [], []
        for run in range(len(self.tasks)):
            task = self.on_device(run)
            order = torch.from_numpy(self._order(run, epoch)).to(task.train.rows.device)
            inputs.append(task.moved(order))
            labels.append(task.train.labels[order])
        return torch.stack(inputs), torch.stack(labels)

    def places_in_order(self, run: int, plan: Plan) -> np.ndarray:
        """Where each sample of a plan lies: numbers below the slot count are slots of the memory, the others minus that
        count are ranks in the epoch's order.
        """
        slots, per_epoch, parts = len(plan.kept), len(plan.places) // self.epochs, []
        for epoch, order in enumerate(self.orders(run)):
            places = plan.places[epoch * per_epoch : (epoch + 1) * per_epoch]
            rank = np.empty(int(order.max()) + 1, dtype=np.int64)
            rank[order] = np.arange(len(order))
            parts.append(np.where(places < slots, places, slots + rank[np.maximum(places - slots, 0)]))
        return np.concatenate(parts)
