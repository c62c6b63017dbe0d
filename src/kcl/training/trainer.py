"""Training on a task: the loop over its batches, and the step of a single run, whose model is called directly.

`stacked_trainer` has the step of many runs at once.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import nullcontext
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from kcl.core.shapes import Float
from kcl.errors import KclError
from kcl.functional.noise import Noise, RunNoise
from kcl.methods.method import Batch, Memory, Replayed
from kcl.ops.convolution_cuda import weights_beside
from kcl.training.checkpoint import Saved, Tree, load_into
from kcl.training.optimizers import OPTIMIZERS, SGD, fused_sgd, move
from kcl.training.stacked_task import StackedTask
from kcl.training.state import memory_of
from kcl.training.step_progress import BetweenSteps, OnStep, Watcher

if TYPE_CHECKING:
    from kcl.training.stack import RunStack

LARGEST_REUSED = 31 << 20
"""Bytes of the largest tensors whose memory glibc can be made to use again; its limit is 32 MB."""


class Trainer(ABC):
    """Trains a stack on one task after another. Its tensors keep their addresses as long as shapes do not change."""

    def __init__(self, stack: RunStack, task: StackedTask) -> None:
        self.stack, self.state, self.method, self.view = stack, stack.state, stack.method, task.view
        self.memory = {name: tensor.clone() for name, tensor in task.memory.items()}
        self.velocities = {name: torch.zeros_like(self.memory[name]) for name in self.method.trained_state}
        """The momentum of task state that is trained together with the parameters."""
        self.method_state = task.method_state
        settings = self.method.settings
        self.updates, self.epochs = settings.updates_per_batch, settings.epochs
        self.sizes = [size for size in task.sizes for _ in range(self.updates)]
        """The batch size of every update of an epoch."""
        self.steps = self.epochs * len(self.sizes)
        self.optimizer = OPTIMIZERS[settings.optimizer](stack.models[0], stack.state.layout)
        beside = stack.device.type == "cuda" and not stack.compiled
        self.overlapping = partial(weights_beside, stack.device) if beside else nullcontext
        """The context of a step's passes."""
        self.losses = torch.zeros(self.steps, stack.count, device=stack.device)
        self.steps_done = 0

    def suits(self, task: StackedTask) -> bool:  # noqa: ARG002
        """Whether this trainer can be used for another task, instead of a new one."""
        return False

    def train(self, task: StackedTask, on_step: OnStep, between_steps: BetweenSteps, saved: Saved | None) -> None:
        """Learn a task, or the rest of it from a state `saved` in the middle of the task."""
        for name, tensor in task.memory.items():
            self.memory[name].copy_(tensor)
        for velocity in self.velocities.values():
            velocity.zero_()
        self._restart(task.index)
        self._begin(task)
        self.steps_done = 0 if saved is None else self._resume(saved)
        watcher = Watcher(self.stack.device, self.losses, on_step, self.steps_done)
        for epoch in range(self.steps_done // len(self.sizes), self.epochs):
            first = self.steps_done - epoch * len(self.sizes)
            self._begin_epoch(task, epoch, first)
            for size in self.sizes[first:]:
                if not self._step(size):
                    return
                self.steps_done += 1
                self.stack.version += 1
                watcher.one_more()
                between_steps()
        watcher.finish()

    def _restart(self, index: int) -> None:
        self.state.restart([self.optimizer.numbers(method.settings, index) for method in self.stack.methods])

    def saved(self) -> Saved:
        """What the steps of a task have changed apart from the weights. Call between two steps."""
        return Saved(self._training_state(), {"step": self.steps_done})

    def _resume(self, saved: Saved) -> int:
        """The inverse of `saved`; returns the number of steps done."""
        present = self._training_state()
        load_into(present, {name: saved.tensors[name] for name in present if name in saved.tensors}, "training")
        step = saved.about.get("step")
        if type(step) is not int or not 0 <= step <= self.steps:
            raise KclError(f"the checkpoint does not fit the run: the step is {str(step)[:40]!r}")
        return step

    def _training_state(self) -> Tree:
        """The optimiser's moments, the task state that it trains and the noise, by their names in a checkpoint."""
        moments = {f"moment {place}" if place else "velocity": each for place, each in enumerate(self.state.moments)}
        trained = {"trained": self.trained_state(), "velocities": self.velocities}
        return moments | trained | {"noise": self._noise_state()}

    def trained_state(self) -> Memory:
        """Task state that is trained together with the parameters, at its current values."""
        return {name: self.memory[name] for name in self.velocities}

    def _observe(
        self, model: nn.Module, memory: Memory, inputs: Tensor, labels: Tensor, replayed: Replayed | None, noise: Noise
    ) -> tuple[Float[Tensor, ""], ...]:
        """All losses of a step of one run, from samples as stored."""
        if replayed is not None:
            replayed = replayed._replace(inputs=self.view.scale(replayed.inputs))
        return self.method.observe(model, memory, Batch(self.view.scale(inputs), labels, replayed), noise)

    def _flatten(self, parameters: dict[str, Tensor], gradients: Sequence[Tensor]) -> Float[Tensor, "s p"]:
        """The gradients of the parameters that are trained, and zeros for the others, in the order of the layout."""
        each, runs = iter(gradients), self.stack.count
        parts = [next(each) if leaf.requires_grad else torch.zeros_like(leaf) for leaf in parameters.values()]
        parts.append(parts[0].new_zeros(runs, self.state.layout.padding))
        return torch.cat([part.reshape(runs, -1) for part in parts], dim=1)

    @abstractmethod
    def _noise_state(self) -> dict[str, Tensor]:
        """The position in the sequence of draws."""

    @abstractmethod
    def _begin(self, task: StackedTask) -> None:
        """Prepare the noise and the replay of a task."""

    @abstractmethod
    def _begin_epoch(self, task: StackedTask, epoch: int, first: int) -> None:
        """Prepare the batches of an epoch from its update number `first` on."""

    @abstractmethod
    def _step(self, size: int) -> bool:
        """One update of every run; returns whether to continue."""


def differentiate(losses: Sequence[Tensor], leaves: Sequence[Tensor]) -> list[Sequence[Tensor]]:
    """The gradients of each loss, for every run; zeros where a loss does not depend on a leaf."""
    ones = [torch.ones_like(loss) if loss.ndim else None for loss in losses]  # autograd has its own for a scalar
    return [
        torch.autograd.grad(loss, leaves, one, len(losses) > 1, allow_unused=True, materialize_grads=True)
        for loss, one in zip(losses, ones, strict=True)
    ]


class PlainTrainer(Trainer):
    """Trains one run by calling its model directly, which any module allows: no vmap, no captured step. Noise is drawn
    when it is requested.
    """

    def __init__(self, stack: RunStack, task: StackedTask) -> None:
        super().__init__(stack, task)
        self.model = stack.models[0]
        named = dict(self.model.named_parameters())
        self._parameters: dict[str, Tensor] = {name: named[name] for name in self.state.layout.shapes}
        self._trained: list[Tensor] = [leaf for leaf in self._parameters.values() if leaf.requires_grad]
        self._memory = memory_of(0, self.memory)
        self._fused, self._alive = type(self.optimizer) is SGD, bool(self.state.alive)
        # The C library maps memory anew for every large tensor, page by page, until one of that size has been freed.
        torch.empty(LARGEST_REUSED, dtype=torch.uint8)
        self._gradients: Sequence[Tensor] = ()

    def _begin(self, task: StackedTask) -> None:
        self.task = self.stack.on_device(task.tasks[0])
        self.plan = task.plans[0] if task.plans and task.replayed_per_step else None
        self.noise = RunNoise(self.stack.device, self.stack.training_seeds[0], "training noise", task.index)
        self._numbers = self.optimizer.numbers(self.method.settings, task.index)
        velocities = self.state.parameters(self.state.moments[0])
        trained = [name for name, leaf in self._parameters.items() if leaf.requires_grad]
        self._weight_velocities = [velocities[name][0] for name in trained]

    def _noise_state(self) -> dict[str, Tensor]:
        return {"0": self.noise.generator.get_state()}

    def _resume(self, saved: Saved) -> int:
        steps = super()._resume(saved)
        try:
            self.noise.generator.set_state(saved.tensors["noise"]["0"])
        except RuntimeError as error:
            raise KclError(f"the checkpoint does not fit the run: {str(error).splitlines()[0][:100]}") from None
        return steps

    def _begin_epoch(self, task: StackedTask, epoch: int, first: int) -> None:
        order = torch.from_numpy(task.orders[0][epoch]).to(self.stack.device)
        self._batches = iter(order.split(self.sizes[:: self.updates])[first // self.updates :])
        self._batch = next(self._batches) if first % self.updates else order[:0]

    def _step(self, size: int) -> bool:  # noqa: ARG002
        if self.steps_done % self.updates == 0:
            self._batch = next(self._batches)
        inputs, labels = self.task.moved(self._batch), self.task.train.labels[self._batch]
        running_before = [flat.clone() for flat in self.state.running]
        with torch.enable_grad(), self.overlapping():
            task_state = {name: self._memory[name].detach().requires_grad_() for name in self.velocities}
            memory = self._memory | task_state
            losses = self._observe(self.model, memory, inputs, labels, self._replayed(), self.noise)
            self._gradients = ()  # only now, so that the new gradients get the memory of the last ones
            gradients = differentiate(losses, [*self._trained, *task_state.values()])
        self.losses[self.steps_done] = losses[0].detach()
        self._alive = self._alive and all(math.isfinite(loss.item()) for loss in losses)
        if not self._alive:  # a run stops for good, with the weights it had before
            self.state.alive.fill_(False)
            for flat, before in zip(self.state.running, running_before, strict=True):
                flat.copy_(before)
            return False
        self._update([each[: len(self._trained)] for each in gradients])
        if task_state:
            self._train_task_state(gradients[0][len(self._trained) :])
        for average in self.state.averages:
            average.update_alone(self.state.flat, self.state.running)
        return True

    def _replayed(self) -> Replayed | None:
        """What the run replays with its batch, not yet scaled; the same in all updates on that batch."""
        if self.plan is None:
            return None
        number, device = self.steps_done // self.updates, self.stack.device
        places, weights = (torch.from_numpy(each[number]).to(device) for each in (self.plan.places, self.plan.weights))
        method_state = memory_of(0, self.method_state)
        new = (places - len(method_state["inputs"])).clamp_min(0)
        samples, labels = self.task.moved(new), self.task.train.labels[new]
        return self.method.replayed(method_state, places, weights, samples, labels, self._memory["classes"])

    @torch.no_grad()
    def _update(self, gradients: list[Sequence[Tensor]]) -> None:
        """Update the weights with the gradients of each loss, and the method state that changes with them."""
        self._gradients = gradients[0]
        if self.method.modifies_gradient or not self._fused:
            flat = [self._flatten(self._parameters, each) for each in gradients]
            direction = flat[0][0]
            if self.method.modifies_gradient:
                method_state = memory_of(0, self.method_state)
                direction, changed = self.method.direction(self.state.flat[0], torch.cat(flat), method_state)
                self.method_state.update({name: tensor[None] for name, tensor in changed.items()})
            if not self._fused:
                self._gradients = ()
                self.optimizer.step(self.state.optimizer(), direction[None])
                return
            parts = zip(self._parameters.values(), self.state.layout.split(direction).values(), strict=True)
            self._gradients = [part for leaf, part in parts if leaf.requires_grad]
        fused_sgd(self._trained, self._gradients, self._weight_velocities, self._numbers)

    @torch.no_grad()
    def _train_task_state(self, gradients: Sequence[Tensor]) -> None:
        """Task state is trained by SGD, whatever the optimiser of the weights."""
        if self._fused:
            velocities = [velocity[0] for velocity in self.velocities.values()]
            fused_sgd([self._memory[name] for name in self.velocities], gradients, velocities, self._numbers)
            return
        for (name, velocity), gradient in zip(self.velocities.items(), gradients, strict=True):
            move(self.memory[name], velocity, gradient[None], self.state.optimizer())
