"""A-GEM: no step may increase, to first order, the loss on samples of earlier tasks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from kcl.benchmarks.task import Task
from kcl.core.settings import Settings
from kcl.core.shapes import Float
from kcl.errors import KclError
from kcl.functional.noise import Noise
from kcl.methods.episodic import EpisodicMethod, ReplaySettings, random_subsets
from kcl.methods.method import Batch, Memory, Orders, ReplayPlan
from kcl.methods.sgd import LinearModel, sliced_cross_entropy


class AveragedGEM(EpisodicMethod):
    """Chaudhry, Ranzato, Rohrbach and Elhoseiny, "Efficient lifelong learning with A-GEM", 2019, Eq. 11.

    Let g be the gradient on the batch and g_ref the gradient on samples replayed from the memory of earlier tasks. SGD
    follows g if g·g_ref ≥ 0, and otherwise its projection g̃ = g − (g·g_ref / g_ref·g_ref) g_ref. In the first task
    there is nothing to replay and SGD follows g.

    The memory holds `memory_per_class` samples of each class of each task, drawn uniformly from the task's training
    samples. The authors' code keeps the last samples of each class; since samples come in random order, both are
    uniform draws. A step replays `recalled_per_step` samples of the memory without repetition, or all if there are
    fewer.

    Both passes are training passes, as in the authors' code: dropout applies to both, and BatchNorm uses the batch
    statistics of each pass and updates its running averages with both, the batch after the replayed samples.
    """

    settings_type: ClassVar[type[Settings]] = ReplaySettings
    name = "a-gem"
    summary = "A-GEM: gradients that would increase the loss on replayed samples are projected"
    keeps = "memory_per_class samples per class and task"
    modifies_gradient = True

    def plan(
        self, method_state: Memory, task: Task, orders: Orders, sizes: Sequence[int], rng: np.random.Generator
    ) -> ReplayPlan:
        self.check_stored(method_state, task)
        filled, slots = int(method_state["filled"].sum()), self.slots
        labels, size = task.train.labels.cpu().numpy(), self.settings.memory_per_class
        new = np.concatenate([rng.permutation(np.flatnonzero(labels == value))[:size] for value in range(task.ways)])
        if filled + len(new) > slots:
            raise KclError(
                f"task {task.index}: {filled + len(new)} samples do not fit into {slots} slots; pass a larger `places`"
            )
        kept = np.full(slots, -1)
        kept[:filled] = np.arange(filled)
        kept[filled : filled + len(new)] = slots + new
        steps, width = len(orders) * len(sizes), min(self.settings.recalled_per_step, slots) if filled else 0
        return ReplayPlan(*random_subsets(np.full(steps, filled), width, rng), kept)

    def losses(self, model: LinearModel, memory: Memory, batch: Batch, noise: Noise) -> tuple[Float[Tensor, ""], ...]:
        """The loss on the batch and, from the second task on, the loss on the replayed samples."""
        if (replayed := batch.replayed) is None:
            return (self.loss(model, memory, batch, noise),)
        past, present = map(model.output, model.backbone.forward_parts([replayed.inputs, batch.inputs], noise))
        losses = sliced_cross_entropy(past, replayed.classes, self.allowed(replayed.allowed))
        reference = (replayed.weights * losses).sum() / replayed.weights.sum()
        return self.batch_loss(present, memory["classes"], batch.labels), reference

    def direction(
        self, weights: Float[Tensor, " p"], gradients: Float[Tensor, "l p"], method_state: Memory
    ) -> tuple[Float[Tensor, " p"], Memory]:
        if len(gradients) == 1:
            return gradients[0], {}
        return project(gradients[0], gradients[1]), {}


def project(gradient: Float[Tensor, " p"], reference: Float[Tensor, " p"]) -> Float[Tensor, " p"]:
    """g where g·g_ref ≥ 0, else the vector nearest to g that is orthogonal to g_ref (Eq. 11)."""
    # Not a matmul, whose precision may be reduced.
    along, square = (gradient * reference).sum(), reference.square().sum()
    share = along.clamp_max(0.0) / square.clamp_min(torch.finfo(square.dtype).tiny)
    return gradient - share * reference
