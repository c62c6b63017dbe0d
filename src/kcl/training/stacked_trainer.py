"""Training many runs at once: one vmapped step for all of them, optionally compiled, and on a GPU captured in a CUDA
graph and replayed.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.func import vmap

from kcl.core.shapes import Float
from kcl.methods.episodic import recall
from kcl.methods.method import Memory, Recalled
from kcl.ops import compiler
from kcl.ops.operation import tracing
from kcl.ops.torch_private import make_fx, tree_flatten, tree_map, tree_unflatten
from kcl.training.batches import CannotStack, TaskExamples
from kcl.training.cuda_graph import GraphedStep, drawn_beside
from kcl.training.draws import Recorder, Replay, Request, Source, merge
from kcl.training.optimizers import SGD
from kcl.training.state import over_runs
from kcl.training.trainer import Stack, StackedTask, StepTensors, Trainer


class StackedTrainer(Trainer):
    """Holds the samples of a whole epoch on the device, so that a step needs nothing from the host."""

    def __init__(self, stack: Stack, task: StackedTask, method_state: Memory) -> None:
        super().__init__(stack, task, method_state)
        device = stack.device
        whole = self.method.modifies_gradient or stack.state.averages or stack.count > 1
        plain_sgd = type(self.optimizer) is SGD
        self.in_parts = stack.compiled and device.type == "cpu" and plain_sgd and not whole
        self.length = task.examples.length
        self.inputs, self.labels = task.examples.in_order(0)
        self.cursor = torch.zeros(1, dtype=torch.int64, device=device)
        """Where in the epoch the next batch begins."""
        self.done = torch.zeros(1, dtype=torch.int64, device=device)
        self.offsets = torch.arange(max(self.sizes), device=device)
        self.recalls = self._planned(task)
        self._await_draws: Callable[[], None] = lambda: None
        self.requests = {size: self._requests(size) for size in set(self.sizes)}
        self._check_that_it_stacks(self.sizes[0])
        self.graphs: dict[int, GraphedStep] = {}
        self.compiled: dict[int, Callable[[], Any]] = {}
        self.sources: dict[int, Source] = {}

    def suits(self, task: StackedTask) -> bool:
        """Whether another task has the shapes that this trainer was built for."""
        examples, planned = task.examples, [task.recalled_per_step] * bool(task.recalled_per_step)
        shapes = {name: (tensor.shape, tensor.dtype) for name, tensor in task.memory.items()}
        return (
            shapes == {name: (tensor.shape, tensor.dtype) for name, tensor in self.memory.items()}
            and (examples.length, examples.shape, examples.dtype)
            == (self.length, self.inputs.shape[2:], self.inputs.dtype)
            and (task.view.mean, task.view.std) == (self.view.mean, self.view.std)
            and planned == [places.shape[2] for places in self.recalls[:1]]
        )

    def rehearse(self) -> None:
        """One step on the first batch, with all rates zero, to measure the memory it takes."""
        self._restart(0)
        for number in self.state.numbers.values():
            number.zero_()
        self._renew_noise(0)
        self._uncaptured_step(self.sizes[0])

    def _begin(self, task: StackedTask, index: int) -> None:
        for tensor, planned in zip(self.recalls, self._planned(task), strict=True):
            tensor.copy_(planned)
        self._renew_noise(index)

    def _begin_epoch(self, examples: TaskExamples, epoch: int, first: int) -> None:
        inputs, labels = examples.in_order(epoch)
        self.inputs.copy_(inputs)
        self.labels.copy_(labels)
        self.done.fill_(self.steps_done)
        self.cursor.fill_(sum(self.sizes[: first - first % self.updates : self.updates]))

    def _planned(self, task: StackedTask) -> list[Tensor]:
        """Places and weights of recalled samples (steps × s × m); empty if nothing is recalled."""
        if task.plans is None or not task.recalled_per_step:
            return []
        places = [task.examples.places_in_order(run, plan) for run, plan in enumerate(task.plans)]
        weights = [plan.weights for plan in task.plans]
        stacked = (np.stack(arrays, axis=1) for arrays in (places, weights))
        return [torch.from_numpy(array).to(self.stack.device) for array in stacked]

    def _step(self, size: int) -> bool:
        if self.stack.device.type != "cuda":
            self._uncaptured_step(size)
            return True
        if size not in self.graphs:
            changed = [*self.state.changed(), *self.method_state.values(), self.cursor, self.done]
            changed += [*self.trained_state().values(), *self.velocities.values(), *self.sources[size].changes]
            another = next(iter(self.graphs.values()), None)
            self.graphs[size] = GraphedStep(lambda: self._uncaptured_step(size), changed, another)
        self.graphs[size]()
        return True

    @torch.no_grad()
    def _uncaptured_step(self, size: int) -> None:
        """One batch of every run, starting at the cursor. Nothing leaves the device."""
        if not self.stack.compiled:
            with drawn_beside(self.sources[size], self.stack.device) as self._await_draws:
                self._next_batch(*self._arguments(size))
            return
        self.sources[size].draw()
        if size not in self.compiled:
            with warnings.catch_warnings(action="ignore"):  # the compiler warns about its internals
                self.compiled[size] = self._compile(self._arguments(size))
                self.compiled[size]()
            return
        self.compiled[size]()

    def _compile(self, arguments: tuple[Any, ...]) -> Callable[[], Any]:
        """The step on these tensors, whose addresses are fixed, traced and compiled."""
        tensors, structure = tree_flatten(arguments)
        copies = [tensor.clone() for tensor in tensors]  # tracing runs the step
        with tracing():
            traced = make_fx(lambda *flat: self._next_batch(*tree_unflatten(list(flat), structure)))(*copies)
        return partial(compiler.compile_step(traced, copies), *tensors)

    def _arguments(self, size: int) -> tuple[Any, ...]:
        """Everything that a step on `size` samples reads and changes."""
        epoch = [self.inputs, self.labels, self.offsets[:size], self.cursor, self.done, self.losses]
        return self._tensors(), epoch, self.recalls, self.sources[size].drawn

    def _next_batch(
        self, tensors: StepTensors, epoch: list[Tensor], recalls: list[Tensor], drawn: list[Tensor]
    ) -> None:
        """The step on the batch at the cursor. Depends on its arguments alone, so that it can be traced."""
        inputs, labels, offsets, cursor, done, losses = epoch
        batch = cursor + offsets
        number = done if self.updates == 1 else done // self.updates
        planned = [plan.index_select(0, number)[0] for plan in recalls]
        recalled = self._recall(tensors.memory, tensors.method_state, planned, inputs, labels)
        values = self._advance(tensors, inputs.index_select(1, batch), labels.index_select(1, batch), recalled, drawn)
        losses.index_copy_(0, done, values[None])
        done.add_(1)
        cursor.add_(len(offsets) if self.updates == 1 else len(offsets) * (done % self.updates == 0))

    def _recall(
        self, memory: Memory, method_state: Memory, planned: list[Tensor], inputs: Tensor, labels: Tensor
    ) -> list[Recalled]:
        """What each run recalls in a step, as stored. `planned`: places and weights (s × m), or empty."""
        if not planned:
            return []
        places, weights = planned
        new = (places - method_state["inputs"].shape[1]).clamp_min(0)
        runs = torch.arange(len(new), device=new.device)[:, None]
        samples = inputs[runs, new], labels[runs, new]
        return [vmap(recall)(method_state, places, weights, *samples, memory["classes"])]

    def _leaves(self, weights: Any) -> dict[str, Tensor]:
        parameters = self.state.parameters(weights)
        for leaf, trained in zip(parameters.values(), self.state.layout.trained, strict=True):
            leaf.requires_grad_(trained)
        return parameters

    def _losses_of_runs(
        self, parameters: dict[str, Tensor], tensors: StepTensors, *arguments: Any
    ) -> tuple[Float[Tensor, " s"], ...]:
        state = parameters | tensors.buffers | self.state.statistics(tensors.running)
        return over_runs(self.stack.models[0], self._replayed_losses, state, *arguments)

    def _replayed_losses(self, model: Any, *arguments: Any) -> tuple[Float[Tensor, ""], ...]:
        memory, inputs, labels, recalled, drawn = arguments
        return self._losses(model, memory, inputs, labels, recalled, Replay(drawn, self._await_draws))

    # Noise

    def _requests(self, size: int) -> list[Request]:
        """The noise that a step on `size` samples requests, recorded in a dry pass on a copy of each model."""
        requests = []
        for run, model in enumerate(self.stack.models):
            recorder = Recorder(self.stack.device)
            memory, recalled = tree_map(lambda tensor, run=run: tensor[run], (self.memory, self._first_recalled()))
            batch = self.inputs[run, :size], self.labels[run, :size]
            with torch.no_grad():
                self._losses(copy.deepcopy(model), memory, *batch, recalled, recorder)
            requests.append(recorder.requests)
        return merge(requests)

    def _check_that_it_stacks(self, size: int) -> None:
        """Compute one loss of all runs on copies, to detect a module that cannot be vmapped before anything changes."""
        drawn = [request.placeholder(self.stack.count, device=self.stack.device) for request in self.requests[size]]
        statistics = self.state.statistics([flat.clone() for flat in self.state.running])
        state = self.state.parameters() | self.state.buffers | statistics
        arguments = self.memory, self.inputs[:, :size], self.labels[:, :size], self._first_recalled(), drawn
        try:
            with torch.no_grad():
                over_runs(self.stack.models[0], self._replayed_losses, state, *arguments, vmapped=True)
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:
            raise CannotStack(f"the model cannot be vmapped ({str(error).splitlines()[0][:120]})") from error

    def _first_recalled(self) -> list[Recalled]:
        planned = [plan[0] for plan in self.recalls]
        return self._recall(self.memory, self.method_state, planned, self.inputs, self.labels)

    def _renew_noise(self, index: int) -> None:
        """The noise of a new task. Batches of all sizes draw from one sequence of steps."""
        fresh = {size: self.stack.source(requests, "training noise", index) for size, requests in self.requests.items()}
        first = fresh[self.sizes[0]]
        for size, source in fresh.items():
            source.share(first)
            if size in self.sources:
                self.sources[size].renew(source)
            else:
                self.sources[size] = source

    def _noise_state(self) -> dict[str, Tensor]:
        return self.sources[self.sizes[0]].state()

    def _restore_noise(self, state: Any) -> None:
        self.sources[self.sizes[0]].restore(state)  # the other sizes share it
