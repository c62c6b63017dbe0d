"""Multi-task training on the shuffled samples of all tasks, the usual reference for continual learning."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from kcl.benchmarks.joint_task import JointTask
from kcl.benchmarks.task import Task
from kcl.core.shapes import Float, Int
from kcl.methods.method import Learnable, Memory
from kcl.methods.sgd import LinearMethod, LinearModel, sliced_cross_entropy
from kcl.nets.backbone import Noise


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

    def initial_state(self, model: LinearModel, task: Task) -> Memory:  # noqa: ARG002
        sample = task.train.inputs[0]
        return {"needed": torch.tensor([len(task.train), len(task.train) * sample.numel() * sample.element_size()])}

    def begin_task(self, model: LinearModel, task: Task, rng: np.random.Generator) -> Learnable:  # noqa: ARG002
        slices = torch.zeros(len(task.parts), self.class_count, dtype=torch.bool)
        for index, part in enumerate(task.parts):
            slices[index, list(part.classes)] = True
        return Learnable(np.arange(len(task.train)), {"slices": slices})

    def loss(
        self,
        model: LinearModel,
        memory: Memory,
        inputs: Float[Tensor, "n ..."],
        labels: Int[Tensor, " n"],
        noise: Noise,
    ) -> Float[Tensor, ""]:
        """Labels encode the task, as task · classes + class (`JointTask`), or with (class, rotation) pairs."""
        scores = model.output(model.backbone(inputs, noise))
        tasks, classes = labels // self.outputs, labels % self.outputs
        return sliced_cross_entropy(scores, classes, memory["slices"][tasks]).mean()

    def memory_use(self, memories: Sequence[Memory], method_state: Memory) -> dict[str, int]:  # noqa: ARG002
        samples, size = method_state["needed"].tolist() if method_state else (0, 0)
        return {"samples": samples, "bytes": size}

    def check(self, task: Task) -> None:
        super().check(task)
        if isinstance(task, JointTask):
            for part in task.parts:
                part.check()
