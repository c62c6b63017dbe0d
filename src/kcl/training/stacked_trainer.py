"""Training many runs at once: one vmapped step for all of them, optionally compiled, and on a GPU captured in a CUDA
graph and replayed.
"""

from __future__ import annotations

import copy
import gc
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import vmap

from kcl.core.shapes import Float
from kcl.methods.method import Memory, Replayed
from kcl.ops import torch_private
from kcl.ops.operation import tracing
from kcl.ops.streams import passing
from kcl.ops.torch_private import make_fx, tree_flatten, tree_map, tree_unflatten
from kcl.training.draws import DrawnNoise, Recorder, Request, drawn_beside, merge
from kcl.training.optimizers import SGD, OptimizerState, descend_in_parts, move, per_run
from kcl.training.stacked_task import StackedTask
from kcl.training.state import CannotStack, over_runs
from kcl.training.trainer import Trainer, differentiate
from kcl.training.weight_average import update as update_average

if TYPE_CHECKING:
    from kcl.training.stack import RunStack


class StepTensors(NamedTuple):
    """Everything that a step reads and changes, apart from its batch."""

    optimizer: OptimizerState
    averages: list[list[Tensor]]
    running: list[Tensor]
    """BatchNorm's running statistics, flat."""
    buffers: dict[str, Tensor]
    memory: Memory
    velocities: Memory
    method_state: Memory


class GraphedStep:
    """Captures `step` once; every call replays it. `changed`: tensors that a step changes in place. `another`: a graph
    never replayed at the same time, whose memory pool is shared.
    """

    def __init__(self, step: Callable[[], None], changed: Sequence[Tensor], another: GraphedStep | None = None) -> None:
        saved = [tensor.clone() for tensor in changed]
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):  # rehearsals choose algorithms and compile kernels
            for _ in range(3):  # each restored to the start: after the last batch there is no next
                step()
                for tensor, value in zip(changed, saved, strict=True):
                    tensor.copy_(value)
        torch.cuda.current_stream().wait_stream(side)
        self.graph = torch.cuda.CUDAGraph()
        gc.collect()  # freeing a graph during a capture would break the capture
        collecting = gc.isenabled()
        gc.disable()
        try:
            device = torch.device("cuda", torch.cuda.current_device())
            pool = None if another is None else another.graph.pool()
            with torch.cuda.graph(self.graph, pool=pool, stream=passing(device)):
                step()
        finally:
            if collecting:
                gc.enable()

    def __call__(self) -> None:
        self.graph.replay()


class StackedTrainer(Trainer):
    """Holds the samples of a whole epoch on the device, so that a step needs nothing from the host."""

    def __init__(self, stack: RunStack, task: StackedTask) -> None:
        super().__init__(stack, task)
        device = stack.device
        whole = self.method.modifies_gradient or stack.state.averages or stack.count > 1
        plain_sgd = type(self.optimizer) is SGD
        self.in_parts = stack.compiled and device.type == "cpu" and plain_sgd and not whole
        self.length = task.length
        self.inputs, self.labels = task.in_order(0)
        self.cursor = torch.zeros(1, dtype=torch.int64, device=device)
        """Where in the epoch the next batch begins."""
        self.done = torch.zeros(1, dtype=torch.int64, device=device)
        self.offsets = torch.arange(max(self.sizes), device=device)
        self.replays = self._planned(task)
        self._await_draws: Callable[[], None] = lambda: None
        requests = {size: self._requests(size) for size in set(self.sizes)}
        self._check_that_it_stacks(self.sizes[0], requests[self.sizes[0]])
        self.sources = {
            size: stack.source(each, "training noise", task.index, stack.training_seeds)
            for size, each in requests.items()
        }
        self.source = self.sources[self.sizes[0]]
        for source in self.sources.values():
            source.share(self.source)  # batches of all sizes draw from one sequence of steps
        self.graphs: dict[int, GraphedStep] = {}
        self.compiled: dict[int, Callable[[], Any]] = {}

    def suits(self, task: StackedTask) -> bool:
        """Whether another task has the shapes that this trainer was built for."""
        planned, stored = [task.replayed_per_step] * bool(task.replayed_per_step), task.tasks[0].train.inputs
        shapes = {name: (tensor.shape, tensor.dtype) for name, tensor in task.memory.items()}
        return (
            shapes == {name: (tensor.shape, tensor.dtype) for name, tensor in self.memory.items()}
            and (task.length, stored.shape[1:], stored.dtype) == (self.length, self.inputs.shape[2:], self.inputs.dtype)
            and (task.view.mean, task.view.std) == (self.view.mean, self.view.std)
            and planned == [places.shape[2] for places in self.replays[:1]]
        )

    def rehearse(self) -> None:
        """One step on the first batch, with all rates zero, to measure the memory it takes."""
        self._restart(0)
        for number in self.state.numbers.values():
            number.zero_()
        self._uncaptured_step(self.sizes[0])

    def _begin(self, task: StackedTask) -> None:
        for tensor, planned in zip(self.replays, self._planned(task), strict=True):
            tensor.copy_(planned)
        self.source.begin(self.stack.training_seeds, "training noise", task.index)

    def _begin_epoch(self, task: StackedTask, epoch: int, first: int) -> None:
        inputs, labels = task.in_order(epoch)
        self.inputs.copy_(inputs)
        self.labels.copy_(labels)
        self.done.fill_(self.steps_done)
        self.cursor.fill_(sum(self.sizes[: first - first % self.updates : self.updates]))

    def _planned(self, task: StackedTask) -> list[Tensor]:
        """Places and weights of replayed samples (steps × s × m); empty if nothing is replayed."""
        if task.plans is None or not task.replayed_per_step:
            return []
        places = [task.places_in_order(run, plan) for run, plan in enumerate(task.plans)]
        weights = [plan.weights for plan in task.plans]
        stacked = (np.stack(arrays, axis=1) for arrays in (places, weights))
        return [torch.from_numpy(array).to(self.stack.device) for array in stacked]

    def _step(self, size: int) -> bool:
        if self.stack.device.type != "cuda":
            self._uncaptured_step(size)
            return True
        if size not in self.graphs:
            changed = [*self.state.changed(), *self.method_state.values(), self.cursor, self.done]
            changed += [*self.trained_state().values(), *self.velocities.values(), self.source.step]
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
        return partial(torch_private.compile_step(traced, copies), *tensors)

    def _arguments(self, size: int) -> tuple[Any, ...]:
        """Everything that a step on `size` samples reads and changes."""
        epoch = [self.inputs, self.labels, self.offsets[:size], self.cursor, self.done, self.losses]
        tensors = StepTensors(
            self.state.optimizer(self.in_parts),
            [average.tensors() for average in self.state.averages],
            self.state.running,
            self.state.buffers,
            self.memory,
            self.velocities,
            self.method_state,
        )
        return tensors, epoch, self.replays, self.sources[size].drawn

    def _next_batch(
        self, tensors: StepTensors, epoch: list[Tensor], replays: list[Tensor], drawn: list[Tensor]
    ) -> None:
        """The step on the batch at the cursor. Depends on its arguments alone, so that it can be traced."""
        inputs, labels, offsets, cursor, done, losses = epoch
        batch = cursor + offsets
        number = done if self.updates == 1 else done // self.updates
        planned = [plan.index_select(0, number)[0] for plan in replays]
        replayed = self._replayed(tensors.memory, tensors.method_state, planned, inputs, labels)
        values = self._advance(tensors, inputs.index_select(1, batch), labels.index_select(1, batch), replayed, drawn)
        losses.index_copy_(0, done, values[None])
        done.add_(1)
        cursor.add_(len(offsets) if self.updates == 1 else len(offsets) * (done % self.updates == 0))

    def _replayed(
        self, memory: Memory, method_state: Memory, planned: list[Tensor], inputs: Tensor, labels: Tensor
    ) -> list[Replayed]:
        """What each run replays in a step, as stored. `planned`: places and weights (s × m), or empty."""
        if not planned:
            return []
        places, weights = planned
        new = (places - method_state["inputs"].shape[1]).clamp_min(0)
        runs = torch.arange(len(new), device=new.device)[:, None]
        samples = inputs[runs, new], labels[runs, new]
        return [vmap(self.method.replayed)(method_state, places, weights, *samples, memory["classes"])]

    # The step

    def _advance(
        self, tensors: StepTensors, inputs: Tensor, labels: Tensor, replayed: list[Replayed], drawn: list[Tensor]
    ) -> Float[Tensor, " s"]:
        """One update of every run, in place; returns the first loss of each."""
        optimizer, running = tensors.optimizer, tensors.running
        running_before = [flat.clone() for flat in running]
        with torch.enable_grad(), self.overlapping():
            parameters = self.state.parameters(optimizer.weights)
            for leaf, trained in zip(parameters.values(), self.state.layout.trained, strict=True):
                leaf.requires_grad_(trained)
            task_state = {name: tensors.memory[name].detach().requires_grad_() for name in tensors.velocities}
            state = parameters | tensors.buffers | self.state.statistics(running)
            arguments = tensors.memory | task_state, inputs, labels, replayed, drawn
            losses = over_runs(self.stack.models[0], self._losses, state, *arguments)
            leaves = [leaf for leaf in parameters.values() if leaf.requires_grad]
            gradients = differentiate(losses, [*leaves, *task_state.values()])
        total = losses[0].detach() if len(losses) == 1 else torch.stack([loss.detach() for loss in losses]).sum(0)
        # A run with a loss that is not finite stops for good, with the weights it had before.
        optimizer.alive.logical_and_(torch.isfinite(total)[:, None])
        changed = self._descend(tensors, parameters, [each[: len(leaves)] for each in gradients])
        for (name, velocity), gradient in zip(tensors.velocities.items(), gradients[0][len(leaves) :], strict=True):
            move(tensors.memory[name], velocity, gradient, optimizer)  # by SGD, whatever the optimiser of the weights
        for name, after in changed.items():
            before = tensors.method_state[name]
            before.copy_(torch.where(per_run(optimizer.alive, after), after, before))
        for flat, before, owner in zip(running, running_before, self.state.owners, strict=True):
            flat.copy_(torch.where(optimizer.alive[:, 0][owner], flat, before))
        for average in tensors.averages:
            update_average(average, optimizer.weights, running, optimizer.alive, self.state.owners)
        return losses[0].detach()

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
            stacked = torch.stack(flat, dim=1)
            gradient, changed = vmap(self.method.direction)(optimizer.weights, stacked, tensors.method_state)
        self.optimizer.step(optimizer, gradient)
        return changed

    def _losses(self, model: nn.Module, *arguments: Any) -> tuple[Float[Tensor, ""], ...]:
        memory, inputs, labels, replayed, drawn = arguments
        noise = DrawnNoise(drawn, self._await_draws)
        return self._observe(model, memory, inputs, labels, next(iter(replayed), None), noise)

    # Noise

    def _noise_state(self) -> dict[str, Tensor]:
        return self.source.position()

    def _requests(self, size: int) -> list[Request]:
        """The noise that a step on `size` samples requests, recorded in a dry pass on a copy of each model."""
        requests = []
        for run, model in enumerate(self.stack.models):
            recorder = Recorder(self.stack.device)
            memory, replayed = tree_map(lambda tensor, run=run: tensor[run], (self.memory, self._first_replayed()))
            batch = self.inputs[run, :size], self.labels[run, :size]
            with torch.no_grad():
                self._observe(copy.deepcopy(model), memory, *batch, next(iter(replayed), None), recorder)
            requests.append(recorder.requests)
        return merge(requests)

    def _check_that_it_stacks(self, size: int, requests: list[Request]) -> None:
        """Compute one loss of all runs on copies, to detect a module that cannot be vmapped before anything changes."""
        drawn = [request.placeholder(self.stack.count, device=self.stack.device) for request in requests]
        statistics = self.state.statistics([flat.clone() for flat in self.state.running])
        state = self.state.parameters() | self.state.buffers | statistics
        arguments = self.memory, self.inputs[:, :size], self.labels[:, :size], self._first_replayed(), drawn
        try:
            with torch.no_grad():
                over_runs(self.stack.models[0], self._losses, state, *arguments, vmapped=True)
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:
            raise CannotStack(f"the model cannot be vmapped ({str(error).splitlines()[0][:120]})") from error

    def _first_replayed(self) -> list[Replayed]:
        planned = [plan[0] for plan in self.replays]
        return self._replayed(self.memory, self.method_state, planned, self.inputs, self.labels)
