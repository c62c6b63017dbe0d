"""Naive SGD: one network with a linear head, trained on each task in turn, with nothing done against forgetting."""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from kcl.benchmarks.task import Task
from kcl.functional.noise import Noise
from kcl.methods.method import Learnable, Memory, Method
from kcl.nets.backbone import Backbone
from kcl.shapes import Float, Int


class LinearModel(nn.Module):
    """The backbone with one linear output per class of the whole stream."""

    def __init__(self, backbone: Backbone, class_count: int) -> None:
        super().__init__()
        self.backbone = backbone
        self.output = nn.Linear(backbone.features, class_count)

    def forward(self, inputs: Tensor, classes: Tensor, noise: Noise | None = None) -> Tensor:
        """Scores of a task's own classes: all of them on MNIST streams, the task's slice where classes are split."""
        return self.output(self.backbone(inputs, noise))[:, classes]


class NaiveSGD(Method):
    name = "naive-sgd"
    summary = "plain SGD on each task in turn, with nothing done against forgetting"

    def build(self, backbone: Backbone) -> LinearModel:
        return LinearModel(backbone, self.class_count)

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

    def classifier(self, model: LinearModel, memory: Memory, noise: Noise) -> Tensor:  # noqa: ARG002
        return memory["classes"]

    def logits(self, model: LinearModel, classifier: Tensor, inputs: Float[Tensor, "n ..."]) -> Float[Tensor, "n c"]:
        return model(inputs, classifier)
