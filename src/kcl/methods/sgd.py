"""SGD: on each task in turn, naive and stable, or on all tasks together; and the linear head that baselines share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from kcl.benchmarks.joint_task import JointTask
from kcl.benchmarks.task import Task
from kcl.core.settings import Settings, setting
from kcl.core.shapes import Bool, Float, Int
from kcl.functional.noise import Noise
from kcl.methods.method import Batch, Learnable, Memory, Method, Places
from kcl.nets.backbone import Backbone

SOFTMAXES = {
    "task": "those of its own task, as published for tasks that are named",
    "all": "those of the whole stream, as usual for tasks that are not named",
}


@dataclass(frozen=True)
class LinearSettings(Settings):
    softmax: str = setting("task", "classes among which training classifies a sample", choices=SOFTMAXES, since=5)


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

    settings_type: ClassVar[type[Settings]] = LinearSettings

    @property
    def among_all(self) -> bool:
        """Whether training classifies a sample among all classes of the stream."""
        return isinstance(self.settings, LinearSettings) and self.settings.softmax == "all"

    def allowed(self, of_task: Bool[Tensor, "n c"]) -> Bool[Tensor, "n c"]:
        """The classes among which training classifies each sample, from those of its own task."""
        return torch.ones_like(of_task) if self.among_all else of_task

    def build(self, backbone: Backbone) -> LinearModel:
        return LinearModel(backbone, self.outputs)

    def begin_task(self, model: LinearModel, task: Task, rng: np.random.Generator) -> Learnable:
        return Learnable(np.arange(len(task.train)), {"classes": torch.tensor(task.classes)})

    def loss(self, model: LinearModel, memory: Memory, batch: Batch, noise: Noise) -> Float[Tensor, ""]:
        return self.batch_loss(model.output(model.backbone(batch.inputs, noise)), memory["classes"], batch.labels)

    def batch_loss(
        self, scores: Float[Tensor, "n c"], classes: Int[Tensor, " w"], labels: Int[Tensor, " n"]
    ) -> Float[Tensor, ""]:
        """The mean cross-entropy of samples of the task with these classes."""
        if self.among_all:
            return F.cross_entropy(scores, classes[labels])
        return F.cross_entropy(scores[:, classes], labels)

    def classifier(self, model: LinearModel, memory: Memory, noise: Noise) -> Memory:
        return {"classes": memory["classes"]}

    def logits(self, model: LinearModel, classifier: Memory, inputs: Float[Tensor, "n ..."]) -> Float[Tensor, "n c"]:
        return model(inputs, classifier["classes"])

    def united(self, memories: Sequence[Memory], places: Places) -> Memory:
        """The outputs of all classes side by side, whose largest one answers."""
        by_place = {place: int(number) for memory, several in zip(memories, places, strict=True)
                    for number, place in zip(memory["classes"], several, strict=True)}  # fmt: skip
        classes = [by_place[place] for place in range(len(by_place))]
        return {"classes": torch.tensor(classes, device=memories[0]["classes"].device)}


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


class MultiTask(LinearMethod):
    """One pass over the samples of all tasks in one random order, each among the classes of its own task.

    This is not continual learning: there is no order of tasks and nothing can be forgotten. Only the accuracies after
    the whole training are recorded, as the last row of the accuracy matrix. The learning rate is that of a first task.
    All training samples are needed at once; they are reported as the memory used.
    """

    name = "multi-task"
    summary = (
        "joint training on the shuffled samples of all tasks: usually taken as an upper bound, not continual learning"
    )
    keeps = "all samples of all tasks, for one joint training"
    joint = True

    def initial_state(self, model: LinearModel, task: Task) -> Memory:
        sample = task.train.inputs[0]
        return {"needed": torch.tensor([len(task.train), len(task.train) * sample.numel() * sample.element_size()])}

    def begin_task(self, model: LinearModel, task: Task, rng: np.random.Generator) -> Learnable:
        slices = torch.zeros(len(task.parts), self.class_count, dtype=torch.bool)
        for index, part in enumerate(task.parts):
            slices[index, list(part.classes)] = True
        return Learnable(np.arange(len(task.train)), {"slices": slices})

    def loss(self, model: LinearModel, memory: Memory, batch: Batch, noise: Noise) -> Float[Tensor, ""]:
        """Labels encode the task, as task · classes + class (`JointTask`), or with (class, rotation) pairs."""
        scores = model.output(model.backbone(batch.inputs, noise))
        tasks, classes = batch.labels // self.outputs, batch.labels % self.outputs
        return sliced_cross_entropy(scores, classes, self.allowed(memory["slices"][tasks])).mean()

    def memory_use(self, memories: Sequence[Memory], method_state: Memory) -> dict[str, int]:
        samples, size = method_state["needed"].tolist() if method_state else (0, 0)
        return {"samples": samples, "bytes": size}

    def check(self, task: Task) -> None:
        super().check(task)
        if isinstance(task, JointTask):
            for part in task.parts:
                part.check()


def among(classes: Int[Tensor, " w"], count: int) -> Bool[Tensor, " c"]:
    """Which of all classes are these."""
    return (torch.arange(count, device=classes.device)[:, None] == classes).any(1)


def sliced_cross_entropy(
    scores: Float[Tensor, "n c"], classes: Int[Tensor, " n"], allowed: Bool[Tensor, "n c"]
) -> Float[Tensor, " n"]:
    """Cross-entropy of every sample among the classes of its own task, for batches that mix tasks."""
    return F.cross_entropy(scores.masked_fill(~allowed, -torch.inf), classes, reduction="none")
