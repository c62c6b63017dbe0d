"""Training one run by calling its model directly, which any module allows: no vmap, no captured step."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from kcl.core.shapes import Float
from kcl.methods.episodic import recall
from kcl.methods.method import Memory, Recalled
from kcl.training.batches import TaskExamples
from kcl.training.checkpoint import fit_all
from kcl.training.draws import RunNoise
from kcl.training.optimizers import SGD, FusedSGD, OptimizerState
from kcl.training.state import for_one_run
from kcl.training.trainer import Stack, StackedTask, StepTensors, Trainer


class PlainTrainer(Trainer):
    """Trains one run by calling its model directly. Noise is drawn when it is requested."""

    def __init__(self, stack: Stack, task: StackedTask, method_state: Memory) -> None:
        super().__init__(stack, task, method_state)
        self.model = stack.models[0]
        named = dict(self.model.named_parameters())
        self._parameters = {name: named[name] for name in stack.state.layout.shapes}
        self._trained = [name for name, leaf in self._parameters.items() if leaf.requires_grad]
        self._memory = {name: tensor[0] for name, tensor in self.memory.items()}
        self._fused, self._alive = type(self.optimizer) is SGD, bool(stack.state.alive)

    def suits(self, task: StackedTask) -> bool:  # noqa: ARG002
        return False  # it holds nothing worth keeping

    def _begin(self, task: StackedTask, index: int) -> None:
        self.task = task.examples.on_device(0)
        self.plan = task.plans[0] if task.plans and task.recalled_per_step else None
        self.noise = RunNoise(self.stack.device, self.stack.training_seeds[0], "training noise", index)
        if self._fused:
            numbers, velocities = SGD.numbers(self.method.settings, index), self.state.parameters(self.state.moments[0])
            names = self._trained
            parameters = [self._parameters[name] for name in names]
            self._sgd = FusedSGD(parameters, [velocities[name][0] for name in names], numbers)
            task_state = [self.memory[name] for name in self.velocities]
            self._task_state_sgd = FusedSGD(task_state, list(self.velocities.values()), numbers)

    def _begin_epoch(self, examples: TaskExamples, epoch: int, first: int) -> None:
        order = torch.from_numpy(examples.orders(0)[epoch]).to(self.stack.device)
        self._batches = iter(order.split(self.sizes[:: self.updates])[first // self.updates :])
        self._batch = next(self._batches) if first % self.updates else order[:0]

    def _step(self, size: int) -> bool:  # noqa: ARG002
        if self.steps_done % self.updates == 0:
            self._batch = next(self._batches)
        batch = self.task.moved(self._batch)[None], self.task.train.labels[self._batch][None]
        losses = self._advance(self._tensors(), *batch, self._recall(), None)
        self.losses[self.steps_done] = losses
        return self._alive

    def _note_diverged(self, optimizer: OptimizerState, total: Float[Tensor, " s"]) -> None:
        self._alive = self._alive and math.isfinite(total.item())
        if not self._alive:
            optimizer.alive.fill_(False)

    def _recall(self) -> list[Recalled]:
        """What the run recalls with its batch, not yet scaled; the same in all updates on that batch."""
        if self.plan is None:
            return []
        number = self.steps_done // self.updates
        places, weights = (
            torch.from_numpy(array[number]).to(self.stack.device) for array in (self.plan.places, self.plan.weights)
        )
        method_state = {name: tensor[0] for name, tensor in self.method_state.items()}
        new = (places - len(method_state["inputs"])).clamp_min(0)
        samples, labels = self.task.moved(new), self.task.train.labels[new]
        drawn = recall(method_state, places, weights, samples, labels, self.memory["classes"][0])
        return [Recalled(*(tensor[None] for tensor in drawn))]

    def _leaves(self, weights: Any) -> dict[str, Tensor]:  # noqa: ARG002
        return dict(self._parameters)

    def _losses_of_runs(
        self,
        parameters: dict[str, Tensor],  # noqa: ARG002
        tensors: StepTensors,  # noqa: ARG002
        *arguments: Any,
    ) -> tuple[Float[Tensor, " s"], ...]:
        memory, inputs, labels, recalled, _ = arguments
        run_memory = self._memory | {name: memory[name][0] for name in self.velocities}
        run_recalled = [Recalled(*(tensor[0] for tensor in each)) for each in recalled]
        losses = self._losses(self.model, run_memory, inputs[0], labels[0], run_recalled, self.noise)
        values = tuple(loss[None] for loss in losses)
        if self._fused:
            self._sgd.release()
        return values

    def _descend(
        self, tensors: StepTensors, parameters: dict[str, Tensor], gradients: list[Sequence[Tensor]]
    ) -> dict[str, Tensor]:
        if not self._alive:
            return {}
        if self._fused and not self.method.modifies_gradient:
            self._sgd.step(gradients[0])
            return {}
        return super()._descend(tensors, parameters, gradients)

    def _follow(self, optimizer: OptimizerState, gradient: Float[Tensor, "s p"]) -> None:
        if not self._fused:
            return super()._follow(optimizer, gradient)
        by_name = self.state.layout.split(gradient[0])
        return self._sgd.step([by_name[name] for name in self._trained])

    def _keep_method_state(self, tensors: StepTensors, changed: dict[str, Tensor]) -> None:
        tensors.method_state.update(changed)  # no copy is needed: a diverged run changes nothing

    def _train_task_state(self, tensors: StepTensors, gradients: Sequence[Tensor]) -> None:
        if not self._fused:
            return super()._train_task_state(tensors, gradients)
        return self._task_state_sgd.step(gradients) if gradients and self._alive else None

    def _direction(
        self, weights: Float[Tensor, "s p"], gradients: Float[Tensor, "s l p"], method_state: Memory
    ) -> tuple[Float[Tensor, "s p"], Memory]:
        def direction(_: nn.Module, *arguments: Any) -> Any:
            return self.method.direction(*arguments)

        return for_one_run(direction, self.model, weights, gradients, method_state)

    def _update_averages(self, tensors: StepTensors) -> None:
        if self._alive:
            for average in self.state.averages:
                average.update_alone(tensors.optimizer.weights, tensors.running)

    def _noise_state(self) -> dict[str, Tensor]:
        return {"0": self.noise.generator.get_state()}

    def _restore_noise(self, state: Any) -> None:
        self.noise.restore(fit_all(state, self._noise_state(), "noise")["0"])
