"""A-GEM: no step may increase, to first order, the loss on samples of earlier tasks."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from kcl.benchmarks.task import Task
from kcl.core.shapes import Float, Int
from kcl.errors import KclError
from kcl.methods.episodic import EpisodicMethod, random_subsets
from kcl.methods.method import Memory, Plan, Recalled
from kcl.methods.sgd import LinearModel, sliced_cross_entropy
from kcl.nets.backbone import Noise


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

    name = "a-gem"
    summary = "A-GEM: gradients that would increase the loss on replayed samples are projected"
    keeps = "memory_per_class samples per class and task"
    modifies_gradient = True

    def plan(
        self,
        method_state: Memory,
        task: Task,
        orders: Sequence[np.ndarray],
        sizes: Sequence[int],
        rng: np.random.Generator,
    ) -> Plan:
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
        return Plan(*random_subsets(np.full(steps, filled), width, rng), kept)

    def losses(
        self,
        model: LinearModel,
        memory: Memory,
        inputs: Float[Tensor, "n ..."],
        labels: Int[Tensor, " n"],
        recalled: Recalled | None,
        noise: Noise,
    ) -> tuple[Float[Tensor, ""], ...]:
        """The loss on the batch and, from the second task on, the loss on the replayed samples."""
        if recalled is None:
            return (self.loss(model, memory, inputs, labels, noise),)
        past, present = map(model.output, model.backbone.forward_parts([recalled.inputs, inputs], noise))
        losses = sliced_cross_entropy(past, recalled.classes, recalled.allowed)
        reference = (recalled.weights * losses).sum() / recalled.weights.sum()
        return F.cross_entropy(present[:, memory["classes"]], labels), reference

    def direction(
        self,
        weights: Float[Tensor, " p"],  # noqa: ARG002
        gradients: Float[Tensor, "l p"],
        method_state: Memory,  # noqa: ARG002
    ) -> tuple[Float[Tensor, " p"], Memory]:
        if len(gradients) == 1:
            return gradients[0], {}
        return project(gradients[0], gradients[1]), {}


def project(gradient: Float[Tensor, " p"], reference: Float[Tensor, " p"]) -> Float[Tensor, " p"]:
    """g where g·g_ref ≥ 0, else the vector nearest to g that is orthogonal to g_ref (Eq. 11)."""
    along, square = (
        (gradient * reference).sum(),
        reference.square().sum(),
    )  # not a matmul, whose precision may be reduced
    share = along.clamp_max(0.0) / square.clamp_min(torch.finfo(square.dtype).tiny)
    return gradient - share * reference
