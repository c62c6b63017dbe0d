"""What a continual-learning method is: how one run learns from a batch, what it keeps of a task, how it answers.

A method describes ONE run: no loop, no device, no logging, no randomness of its own. `training` does the rest.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from kcl.benchmarks.task import Task
from kcl.functional.noise import Noise
from kcl.nets.backbone import Backbone
from kcl.settings import Settings
from kcl.shapes import Float, Int

Memory = dict[str, Tensor]
"""What is kept of one task: tensors only, so that it can be stacked over runs and saved.

Samples are kept under "inputs", as stored (bytes where the data are bytes); `loss` and `classifier` are handed
them as the network sees them.
"""


class Learnable(NamedTuple):
    """A task as a method wants it: the rows to train on, and what is kept of the task from its beginning."""

    positions: np.ndarray
    memory: Memory


class Method(ABC):
    name: ClassVar[str]
    summary: ClassVar[str]
    answers_unseen: ClassVar[bool] = True
    """Whether a task can be tested before it was learned (needed for forward transfer)."""

    def __init__(self, settings: Settings, class_count: int) -> None:
        self.settings = settings
        self.class_count = class_count

    def check(self, task: Task) -> None:
        """Refuse a task that this method cannot learn."""
        task.check()

    @abstractmethod
    def build(self, backbone: Backbone) -> nn.Module:
        """The run's model. Called with PyTorch's generator seeded for the run."""

    @abstractmethod
    def begin_task(self, model: Any, task: Task, rng: np.random.Generator) -> Learnable:
        """Called before the first batch of a task."""

    @abstractmethod
    def loss(
        self,
        model: Any,
        memory: Memory,
        inputs: Float[Tensor, "n ..."],
        labels: Int[Tensor, " n"],
        noise: Noise,
    ) -> Float[Tensor, ""]:
        """What a training step minimises."""

    def end_task(self, model: Any, memory: Memory) -> Memory:  # noqa: ARG002
        """What is kept after the last batch of a task."""
        return memory

    def unseen_memory(self, task: Task) -> Memory:
        """What stands in for a task's memory before the task was learned, where `answers_unseen`."""
        return {"classes": torch.tensor(task.classes)}

    @abstractmethod
    def classifier(self, model: Any, memory: Memory, noise: Noise) -> Any:
        """Everything about a task's answers that does not depend on the query; valid until the model changes."""

    @abstractmethod
    def logits(self, model: Any, classifier: Any, inputs: Float[Tensor, "n ..."]) -> Float[Tensor, "n c"]:
        """Scores of a task's classes."""
