"""SGD on each task in turn, naive and stable, and the network with a linear head that all baselines share."""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from kcl.benchmarks.task import Task
from kcl.core.shapes import Bool, Float, Int
from kcl.methods.method import Learnable, Memory, Method
from kcl.nets.backbone import Backbone, Noise


class LinearModel(nn.Module):
    """The backbone with one linear output per class of the whole stream, or per (class, rotation) pair."""

    def __init__(self, backbone: Backbone, class_count: int) -> None:
        super().__init__()
        self.backbone = backbone
        self.output = nn.Linear(backbone.features, class_count)

    def forward(self, inputs: Tensor, classes: Tensor, noise: Noise | None = None) -> Tensor:
        """Scores of a task's classes: all outputs on MNIST streams, a slice of them on split streams."""
        return self.output(self.backbone(inputs, noise))[:, classes]


class LinearMethod(Method):
    """A shared backbone with a linear head, trained by cross-entropy. Each task's memory holds only its classes."""

    def build(self, backbone: Backbone) -> LinearModel:
        return LinearModel(backbone, self.outputs)

    def begin_task(self, model: LinearModel, task: Task, rng: np.random.Generator) -> Learnable:  # noqa: ARG002
        return Learnable(np.arange(len(task.train)), {"classes": torch.tensor(task.classes)})

    def loss(
        self,
        model: LinearModel,
        memory: Memory,
        inputs: Float[Tensor, "n ..."],
        labels: Int[Tensor, " n"],
        noise: Noise,
    ) -> Float[Tensor, ""]:
        return F.cross_entropy(model(inputs, memory["classes"], noise), labels)

    def classifier(self, model: LinearModel, memory: Memory, noise: Noise) -> Memory:  # noqa: ARG002
        return {"classes": memory["classes"]}

    def logits(self, model: LinearModel, classifier: Memory, inputs: Float[Tensor, "n ..."]) -> Float[Tensor, "n c"]:
        return model(inputs, classifier["classes"])


class NaiveSGD(LinearMethod):
    """Does nothing against forgetting."""

    name = "naive-sgd"
    summary = "plain SGD on each task in turn, with nothing done against forgetting"
    keeps = "nothing"


class StableSGD(LinearMethod):
    """Mirzadeh, Farajtabar, Pascanu and Ghasemzadeh, "Understanding the role of training regimes in continual
    learning", 2020: a learning rate that starts high and decays from task to task, dropout and small batches lead
    to wide minima, which later tasks disturb less.

    The computation is that of naive SGD; the method is its training regime, given by its settings (`methods.recipes`).
    """

    name = "stable-sgd"
    summary = "plain SGD with a learning rate that decays from task to task, and dropout"
    keeps = "nothing"


def sliced_cross_entropy(
    scores: Float[Tensor, "n c"], classes: Int[Tensor, " n"], allowed: Bool[Tensor, "n c"]
) -> Float[Tensor, " n"]:
    """Cross-entropy of every sample among the classes of its own task, for batches that mix tasks."""
    return F.cross_entropy(scores.masked_fill(~allowed, -torch.inf), classes, reduction="none")
