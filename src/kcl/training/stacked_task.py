"""A task as the runs of a stack learn it: its memory, what is replayed, and the order of its samples in each run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor, nn

from kcl.benchmarks.task import Task
from kcl.core.randomness import numpy_generator
from kcl.core.shapes import Int, Shaped
from kcl.errors import KclError
from kcl.methods.method import Memory, ReplayPlan
from kcl.training.evaluation import as_seen
from kcl.training.state import CannotStack, memory_of, stack_memories

if TYPE_CHECKING:
    from kcl.training.stack import RunStack


class StackedTask:
    """One version of a task for every training. The first dimension of tensors is the runs."""

    def __init__(self, stack: RunStack, tasks: Sequence[Task]) -> None:
        """Begins the task: methods draw coresets, reset heads and plan what is replayed."""
        self.stack, self.tasks, self.index = stack, tasks, tasks[0].index
        self.view = tasks[0].view.to(stack.device)
        if any((task.view.mean, task.view.std) != (self.view.mean, self.view.std) for task in tasks):
            raise CannotStack("the runs scale their samples differently")
        for method, task in zip(stack.methods, tasks, strict=True):
            method.check(task)
        learnables = stack.learnables(tasks)
        self.stored_memory = stack_memories([learnable.memory for learnable in learnables], stack.device)
        self.memory: Memory = as_seen(self.stored_memory, self.view)
        positions = [learnable.positions for learnable in learnables]
        if len({len(rows) for rows in positions}) != 1 or len({id(task.train.inputs) for task in tasks}) != 1:
            raise CannotStack("the runs have training sets of different sizes or from different arrays")
        self.length = len(positions[0])
        self.orders = [
            [batch_order(seed, task.index, epoch, rows) for epoch in range(stack.method.settings.epochs)]
            for seed, task, rows in zip(stack.training_seeds, tasks, positions, strict=True)
        ]
        """By run and epoch: the training samples in the order in which they are visited."""
        self.sizes = batch_sizes(stack.models[0], self.length, stack.method.settings.batch_size)
        self.method_state = stack.initial_state(tasks) if stack.method_state is None else stack.method_state
        self.plans = self._plans()
        """What each run replays; None if the method replays nothing."""

    def _plans(self) -> list[ReplayPlan] | None:
        plans, stack = [], self.stack
        parts = zip(stack.methods, self.tasks, stack.training_seeds, self.orders, strict=True)
        for run, (method, task, seed, orders) in enumerate(parts):
            rng = numpy_generator(seed, "recalled", task.index)
            plans.append(method.plan(memory_of(run, self.method_state), task, orders, self.sizes, rng))
        return [plan for plan in plans if plan is not None] or None

    @property
    def replayed_per_step(self) -> int:
        return 0 if self.plans is None else self.plans[0].places.shape[1]

    def in_order(self, epoch: int) -> tuple[Shaped[Tensor, "s n ..."], Int[Tensor, "s n"]]:
        """All samples and labels of an epoch, in the order in which each run visits them."""
        inputs, labels = [], []
        for task, orders in zip(map(self.stack.on_device, self.tasks), self.orders, strict=True):
            order = torch.from_numpy(orders[epoch]).to(task.train.rows.device)
            inputs.append(task.moved(order))
            labels.append(task.train.labels[order])
        return torch.stack(inputs), torch.stack(labels)

    def places_in_order(self, run: int, plan: ReplayPlan) -> np.ndarray:
        """Where each sample of a plan lies: numbers below the slot count are slots of the memory, the others minus that
        count are ranks in the epoch's order.
        """
        slots, parts = len(plan.kept), []
        by_epoch = np.split(plan.places, len(self.orders[run]))
        for places, order in zip(by_epoch, self.orders[run], strict=True):
            rank = np.empty(int(order.max()) + 1, dtype=np.int64)
            rank[order] = np.arange(len(order))
            parts.append(np.where(places < slots, places, slots + rank[np.maximum(places - slots, 0)]))
        return np.concatenate(parts)


def batch_sizes(model: nn.Module, length: int, batch: int) -> list[int]:
    """The batch sizes of an epoch; the last may be smaller. BatchNorm has no statistics for a single sample, so with it
    a last batch of one joins the batch before.
    """
    sizes = [batch] * (length // batch) + [length % batch] * (length % batch > 0)
    if sizes[-1:] == [1] and getattr(model.get_submodule("backbone"), "mixes_samples", False):
        if len(sizes) == 1 or batch == 1:
            raise KclError("a backbone with BatchNorm needs training batches of at least two samples")
        sizes[-2:] = [sizes[-2] + 1]
    return sizes


def batch_order(seed: int, task_index: int, epoch: int, positions: np.ndarray) -> np.ndarray:
    """The training positions in the order in which a run visits them in an epoch."""
    return numpy_generator(seed, "batch order", task_index, epoch).permutation(positions)
