"""One run of the engine, asked without lists: for tests of methods, which are single-run code."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from kcl.benchmarks.task import Task, View
from kcl.methods.method import Memory, Method
from kcl.nets.backbone import Backbone
from kcl.training.stack import RunStack
from kcl.training.state import memory_of
from kcl.training.step_progress import OnStep


class Kept(NamedTuple):
    memory: Memory
    view: View


class OneRun:
    """A plain stack of one training."""

    def __init__(
        self,
        method: Method,
        make_backbone: Callable[[], Backbone],
        seed: int,
        device: str | torch.device = "cpu",
        variants: Sequence[Method] | None = None,
    ) -> None:
        several = [list(variants)] if variants else None
        self.stack = RunStack(
            [method], [make_backbone], [seed], device, precision="float32", variants=several, plain=True
        )
        self.method, self.seed, self.model = method, seed, self.stack.models[0]

    def learn(self, task: Task, on_step: OnStep = lambda _: None) -> None:
        self.stack.learn([task] * len(self.stack.runs), on_step)

    def accuracy(self, task: Task, variant: int = 0) -> float:
        return self.stack.accuracy([task] * len(self.stack.runs))[variant]

    def scores(self, task: Task, variant: int = 0) -> Tensor:
        """Scores of the task's test samples."""
        return self.stack.scores([task] * len(self.stack.runs))[variant]

    @property
    def answering(self) -> nn.Module:
        return self.stack.model_at_test(0)

    @property
    def kept(self) -> dict[int, Kept]:
        """What is kept of every task; its tensors are the stack's own."""
        return {index: Kept(memory_of(0, memory), view) for index, (memory, view) in self.stack.kept.items()}

    @property
    def method_state(self) -> Memory | None:
        """The method's state over all tasks, copied."""
        state = self.stack.method_state
        return None if state is None else {name: tensor[0].clone() for name, tensor in state.items()}

    def memory_use(self) -> dict[str, int]:
        return self.stack.memory_use()[0]

    @property
    def diverged(self) -> bool:
        return self.stack.diverged[0]
