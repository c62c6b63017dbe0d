"""Training a stack of runs on a task: the loop over its batches, and the step.

A step is the same for one run and for many: noise, losses, gradients, update, averages. `plain_trainer` does it for one
run by calling its model directly, `stacked_trainer` for many runs at once.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor, nn
from torch.func import vmap

from kcl.benchmarks.task import View
from kcl.core.shapes import Float
from kcl.methods.method import Memory, Method, Plan, Recalled
from kcl.nets.backbone import Noise
from kcl.ops.convolution_cuda import weights_beside
from kcl.training.batches import TaskExamples, batch_sizes
from kcl.training.checkpoint import Saved, Tree, fit, fit_all
from kcl.training.draws import Request, Source
from kcl.training.optimizers import (
    OPTIMIZERS,
    OptimizerState,
    descend_in_parts,
    move,
    per_run,
)
from kcl.training.restoring import whole_number
from kcl.training.state import StackState
from kcl.training.step_progress import BetweenSteps, OnStep, Watcher
from kcl.training.weight_average import update as update_average


class Stack(Protocol):
    """The interface of `stack.RunStack` that training needs."""

    methods: Sequence[Method]
    method: Method
    models: list[nn.Module]
    training_seeds: Sequence[int]
    count: int
    device: torch.device
    compiled: bool
    state: StackState

    def source(self, requests: Sequence[Request], purpose: str, index: int) -> Source: ...


class StackedTask(NamedTuple):
    """A task of every run of a stack. The first dimension of tensors is the runs."""

    memory: Memory
    """The memory of the task, its samples scaled as the network sees them."""
    examples: TaskExamples
    view: View
    plans: Sequence[Plan] | None
    """What each run recalls; None if the method recalls nothing."""

    @property
    def recalled_per_step(self) -> int:
        return 0 if self.plans is None else self.plans[0].places.shape[1]


class StepTensors(NamedTuple):
    """Everything that a step reads and changes, apart from its batch."""

    optimizer: OptimizerState
    averages: list[list[Tensor]]
    running: list[Tensor]
    """BatchNorm's running statistics, flat."""
    buffers: dict[str, Tensor]
    memory: Memory
    velocities: Memory
    """The momentum of task state that is trained together with the parameters."""
    method_state: Memory


class Trainer(ABC):
    """Trains a stack on one task after another. Its tensors keep their addresses as long as shapes do not change."""

    in_parts = False
    """Whether parameters are updated one by one, because nothing needs all gradients in one tensor."""

    def __init__(self, stack: Stack, task: StackedTask, method_state: Memory) -> None:
        self.stack, self.state, self.method, self.view = stack, stack.state, stack.method, task.view
        self.memory = {name: tensor.clone() for name, tensor in task.memory.items()}
        self.velocities = {name: torch.zeros_like(self.memory[name]) for name in self.method.trained_state}
        self.method_state = method_state
        settings = self.method.settings
        self.updates, self.epochs = settings.updates_per_batch, settings.epochs
        sizes = batch_sizes(stack.models[0], task.examples.length, settings.batch_size)
        self.sizes = [size for size in sizes for _ in range(self.updates)]
        """The batch size of every update of an epoch."""
        self.steps = self.epochs * len(self.sizes)
        self.optimizer = OPTIMIZERS[settings.optimizer](stack.models[0], stack.state.layout)
        self.losses = torch.zeros(self.steps, stack.count, device=stack.device)
        self.steps_done = 0

    def train(
        self,
        task: StackedTask,
        on_step: OnStep,
        between_steps: BetweenSteps = lambda: None,
        saved: Saved | None = None,
    ) -> None:
        """Learn a task, or the rest of it from a state `saved` in the middle of the task."""
        index = task.examples.tasks[0].index
        for name, tensor in task.memory.items():
            self.memory[name].copy_(tensor)
        for velocity in self.velocities.values():
            velocity.zero_()
        self._restart(index)
        self._begin(task, index)
        self.steps_done = 0 if saved is None else self._resume(saved)
        watcher = Watcher(self.stack.device, self.losses, on_step, self.steps_done)
        for epoch in range(self.steps_done // len(self.sizes), self.epochs):
            first = self.steps_done - epoch * len(self.sizes)
            self._begin_epoch(task.examples, epoch, first)
            for size in self.sizes[first:]:
                if not self._step(size):
                    return
                self.steps_done += 1
                watcher.one_more()
                between_steps()
        watcher.finish()

    def _restart(self, index: int) -> None:
        self.state.restart([self.optimizer.numbers(method.settings, index) for method in self.stack.methods])

    def saved(self) -> Saved:
        """What the steps of a task have changed apart from the weights. Call between two steps."""
        moments = {_moment_name(place): moment for place, moment in enumerate(self.state.moments)}
        tensors: Tree = {**moments, "noise": self._noise_state()}
        if self.velocities:
            tensors |= {"trained": self.trained_state(), "velocities": self.velocities}
        return Saved(tensors, {"step": self.steps_done})

    def trained_state(self) -> Memory:
        """Task state that is trained together with the parameters, at its current values."""
        return {name: self.memory[name] for name in self.velocities}

    def _resume(self, saved: Saved) -> int:
        for place, moment in enumerate(self.state.moments):
            name = _moment_name(place)
            moment.copy_(fit(saved.tensors.get(name), moment, name))
        for part, present in (("trained", self.trained_state()), ("velocities", self.velocities)):
            for name, tensor in fit_all(saved.tensors.get(part), present, part).items():
                present[name].copy_(tensor)
        self._restore_noise(saved.tensors.get("noise"))
        return int(whole_number(saved.about.get("step"), "the step", self.steps))

    # What plain and stacked training do differently

    @abstractmethod
    def suits(self, task: StackedTask) -> bool:
        """Whether this trainer can be used for another task."""

    @abstractmethod
    def _begin(self, task: StackedTask, index: int) -> None:
        """Prepare the noise and the plans of a task."""

    @abstractmethod
    def _begin_epoch(self, examples: TaskExamples, epoch: int, first: int) -> None:
        """Prepare the batches of an epoch from its update number `first` on."""

    @abstractmethod
    def _step(self, size: int) -> bool:
        """One update of every run; returns whether to continue."""

    @abstractmethod
    def _leaves(self, weights: Any) -> dict[str, Tensor]:
        """The parameters by name, as leaves of the autograd graph."""

    @abstractmethod
    def _losses_of_runs(
        self, parameters: dict[str, Tensor], tensors: StepTensors, *arguments: Any
    ) -> tuple[Float[Tensor, " s"], ...]:
        """All losses of a step, for every run."""

    @abstractmethod
    def _noise_state(self) -> dict[str, Tensor]:
        """The position of the noise in its sequence of draws."""

    @abstractmethod
    def _restore_noise(self, state: Any) -> None: ...

    # The step

    def _tensors(self) -> StepTensors:
        return StepTensors(
            self.state.optimizer(self.in_parts),
            [average.tensors() for average in self.state.averages],
            self.state.running,
            self.state.buffers,
            self.memory,
            self.velocities,
            self.method_state,
        )

    def _advance(
        self, tensors: StepTensors, inputs: Tensor, labels: Tensor, recalled: list[Recalled], noise: Any
    ) -> Float[Tensor, " s"]:
        """One update of every run, in place; returns the first loss of each. Depends on its arguments alone, so that it
        can be traced.
        """
        optimizer, running = tensors.optimizer, tensors.running
        running_before = [flat.clone() for flat in running]
        with torch.enable_grad(), self._weights_beside():
            parameters = self._leaves(optimizer.weights)
            trained = {name: tensors.memory[name].detach().requires_grad_() for name in tensors.velocities}
            memory = tensors.memory | trained
            losses = self._losses_of_runs(parameters, tensors, memory, inputs, labels, recalled, noise)
            leaves, several = [leaf for leaf in parameters.values() if leaf.requires_grad], len(losses) > 1
            by = [*leaves, *trained.values()]
            gradients = [
                torch.autograd.grad(loss, by, torch.ones_like(loss), several, allow_unused=True, materialize_grads=True)
                for loss in losses
            ]
        total = losses[0].detach() if not several else torch.stack([loss.detach() for loss in losses]).sum(0)
        self._note_diverged(optimizer, total)
        changed = self._descend(tensors, parameters, [each[: len(leaves)] for each in gradients])
        self._train_task_state(tensors, gradients[0][len(leaves) :])
        self._keep_method_state(tensors, changed)
        for flat, before, owner in zip(running, running_before, self.state.owners, strict=True):
            flat.copy_(torch.where(optimizer.alive[:, 0][owner], flat, before))
        self._update_averages(tensors)
        return losses[0].detach()

    def _note_diverged(self, optimizer: OptimizerState, total: Float[Tensor, " s"]) -> None:
        """A run with a loss that is not finite stops for good, with the weights it had before."""
        optimizer.alive.logical_and_(torch.isfinite(total)[:, None])

    def _weights_beside(self) -> AbstractContextManager[None]:
        if self.stack.device.type != "cuda" or self.stack.compiled:
            return nullcontext()
        return weights_beside(self.stack.device)

    def _descend(
        self, tensors: StepTensors, parameters: dict[str, Tensor], gradients: list[Sequence[Tensor]]
    ) -> dict[str, Tensor]:
        """Update the weights with the gradients of each loss; returns the method state that changes with them."""
        optimizer = tensors.optimizer
        if self.in_parts:
            each = iter(gradients[0])
            descend_in_parts(optimizer, [next(each) if leaf.requires_grad else None for leaf in parameters.values()])
            return {}
        flat = [self._flatten(parameters, each) for each in gradients]
        gradient, changed = flat[0], dict[str, Tensor]()
        if self.method.modifies_gradient:
            gradient, changed = self._direction(optimizer.weights, torch.stack(flat, dim=1), tensors.method_state)
        self._follow(optimizer, gradient)
        return changed

    def _follow(self, optimizer: OptimizerState, gradient: Float[Tensor, "s p"]) -> None:
        self.optimizer.step(optimizer, gradient)

    def _keep_method_state(self, tensors: StepTensors, changed: dict[str, Tensor]) -> None:
        """Store changed method state of the runs that are alive."""
        for name, after in changed.items():
            before = tensors.method_state[name]
            before.copy_(torch.where(per_run(tensors.optimizer.alive, after), after, before))

    def _train_task_state(self, tensors: StepTensors, gradients: Sequence[Tensor]) -> None:
        """Task state is trained by SGD, whatever the optimiser of the weights."""
        for (name, velocity), gradient in zip(tensors.velocities.items(), gradients, strict=True):
            move(tensors.memory[name], velocity, gradient, tensors.optimizer)

    def _direction(
        self, weights: Float[Tensor, "s p"], gradients: Float[Tensor, "s l p"], method_state: Memory
    ) -> tuple[Float[Tensor, "s p"], Memory]:
        """The gradient as modified by the method, and the method state that changes with it."""
        return vmap(self.method.direction)(weights, gradients, method_state)

    def _flatten(self, parameters: dict[str, Tensor], gradients: Sequence[Tensor]) -> Float[Tensor, "s p"]:
        each, runs = iter(gradients), self.stack.count
        parts = [next(each) if leaf.requires_grad else torch.zeros_like(leaf) for leaf in parameters.values()]
        parts.append(parts[0].new_zeros(runs, self.state.layout.padding))
        return torch.cat([part.reshape(runs, -1) for part in parts], dim=1)

    def _update_averages(self, tensors: StepTensors) -> None:
        for average in tensors.averages:
            update_average(
                average, tensors.optimizer.weights, tensors.running, tensors.optimizer.alive, self.state.owners
            )

    def _losses(
        self,
        model: nn.Module,
        memory: Memory,
        inputs: Tensor,
        labels: Tensor,
        recalled: list[Recalled],
        noise: Noise,
    ) -> tuple[Float[Tensor, ""], ...]:
        """All losses of a step of one run, from samples as stored."""
        scaled = recalled[0]._replace(inputs=self.view.scale(recalled[0].inputs)) if recalled else None
        return self.method.observe(model, memory, self.view.scale(inputs), labels, scaled, noise)


def _moment_name(place: int) -> str:
    return "velocity" if place == 0 else f"moment {place}"
