"""The training of stacked runs on a task: batches of every run, one step over all of them, captured and replayed."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._pytree import tree_map

from kcl.benchmarks.task import Task, View
from kcl.cuda.convolution import deferred_weights
from kcl.methods.method import Memory, Method
from kcl.shapes import Int
from kcl.training.graph import GraphedStep, Watcher
from kcl.training.noise import Recorder, Replay, Request, Source, merge
from kcl.training.run import OnStep, batch_order, batch_sizes, learning_rate
from kcl.training.state import CannotStack, StackedState, descend, over_runs


class Stack(Protocol):
    """What the training needs of the runs it trains."""

    methods: Sequence[Method]
    method: Method
    models: list[nn.Module]
    seeds: Sequence[int]
    count: int
    device: torch.device
    compiled: bool
    state: StackedState

    def source(self, requests: Sequence[Request], purpose: str, index: int) -> Source: ...

    def stored(self, inputs: Tensor) -> Tensor: ...


class EpochExamples:
    """The training samples of one task, run by run, in the order of an epoch."""

    def __init__(self, learner: Stack, tasks: Sequence[Task], positions: Sequence[Any]) -> None:
        if len({len(own) for own in positions}) != 1 or len({id(task.train.inputs) for task in tasks}) != 1:
            raise CannotStack("the runs have training sets of different sizes or from different arrays")
        self.learner, self.tasks, self.positions = learner, tasks, positions
        self.length = len(positions[0])
        self.shape, self.dtype = tasks[0].train.inputs.shape[1:], tasks[0].train.inputs.dtype

    def in_order(self, epoch: int) -> tuple[Tensor, Int[Tensor, "s n"]]:
        learner, inputs, labels = self.learner, [], []
        stored = learner.stored(self.tasks[0].train.inputs)
        for seed, task, positions in zip(learner.seeds, self.tasks, self.positions, strict=True):
            order = torch.from_numpy(batch_order(seed, task.index, epoch, positions))
            inputs.append(task.view.to(learner.device).move(stored[task.train.rows[order].to(learner.device)]))
            labels.append(task.train.labels[order])
        return torch.stack(inputs), torch.stack(labels).to(learner.device)


class Trainer:
    """Tensors that stay where they are from task to task, and the step over them, captured once."""

    def __init__(self, learner: Stack, working: Memory, examples: EpochExamples, view: View) -> None:
        self.learner, self.state, self.view = learner, learner.state, view
        self.memory = {name: tensor.clone() for name, tensor in working.items()}
        settings = learner.method.settings
        self.length, self.batch, self.epochs = examples.length, settings.batch_size, settings.epochs
        self.inputs, self.labels = examples.in_order(0)
        self.cursor = torch.zeros(1, dtype=torch.int64, device=learner.device)
        self.plan = batch_sizes(learner.models[0], self.length, self.batch)
        self.steps = self.epochs * len(self.plan)
        self.done = torch.zeros(1, dtype=torch.int64, device=learner.device)
        self.losses = torch.zeros(self.steps, learner.count, device=learner.device)
        self.requests = {size: self._requests(size) for size in set(self.plan)}
        self._see_that_it_stacks(self.plan[0])
        self.graphs: dict[int, GraphedStep] = {}
        self.compiled: dict[int, Callable[..., Tensor]] = {}
        self.sources: dict[int, Source] = {}

    def suits(self, working: Memory, examples: EpochExamples, view: View) -> bool:
        """Whether another task has the shapes this trainer was made for."""
        shapes = {name: (tensor.shape, tensor.dtype) for name, tensor in working.items()}
        return (
            shapes == {name: (tensor.shape, tensor.dtype) for name, tensor in self.memory.items()}
            and (examples.length, examples.shape, examples.dtype)
            == (self.length, self.inputs.shape[2:], self.inputs.dtype)
            and (view.mean, view.std) == (self.view.mean, self.view.std)
        )

    def rehearse(self) -> None:
        self._renew_noise(0)
        self._step(self.plan[0])

    def train(self, index: int, working: Memory, examples: EpochExamples, on_step: OnStep) -> None:
        for name, tensor in working.items():
            self.memory[name].copy_(tensor)
        settings = [method.settings for method in self.learner.methods]
        self.state.restart([learning_rate(own, index) for own in settings], [own.momentum for own in settings])
        self._renew_noise(index)
        self.done.zero_()
        watcher = Watcher(self.learner.device, self.losses, on_step)
        for epoch in range(self.epochs):
            inputs, labels = examples.in_order(epoch)
            self.inputs.copy_(inputs)
            self.labels.copy_(labels)
            self.cursor.zero_()
            for size in self.plan:
                self._run_step(size)
                watcher.one_more()
        watcher.finish()

    def _run_step(self, size: int) -> None:
        if self.learner.device.type != "cuda":
            self._step(size)
            return
        if size not in self.graphs:
            changed = [*self.state.changed(), self.cursor, self.done, *self.sources[size].changes]
            self.graphs[size] = GraphedStep(lambda: self._step(size), changed)
        self.graphs[size]()

    @torch.no_grad()
    def _step(self, size: int) -> None:
        """One batch of every run, from the cursor on: draw, loss, gradient, update. Nothing leaves the device."""
        self.sources[size].draw()
        tensors = self._tensors(size)
        if not self.learner.compiled:
            self._advance(*tensors)
            return
        if size not in self.compiled:
            copies = tree_map(torch.clone, tensors)  # tracing runs the step
            traced = make_fx(lambda *given: self._advance(*given))(*copies)
            self.compiled[size] = torch.compile(traced, dynamic=False, fullgraph=True)
        self.compiled[size](*tensors)

    def _tensors(self, size: int) -> tuple[Any, ...]:
        """Everything a step over `size` samples reads and changes."""
        source, places = self.sources[size], torch.arange(size, device=self.learner.device)
        epoch = [self.inputs, self.labels, places, self.cursor, self.done, self.losses]
        return self.state.optimiser(), self.state.running, self.state.buffers, self.memory, epoch, source.drawn

    def _advance(
        self,
        optimiser: list[Tensor],
        running: list[Tensor],
        buffers: dict[str, Tensor],
        memory: Memory,
        epoch: list[Tensor],
        drawn: list[Tensor],
    ) -> None:
        """The step, once its noise is drawn. A function of its arguments alone, so that it can be traced."""
        inputs, labels, places, cursor, done, losses = epoch
        before = [flat.clone() for flat in running]
        batch = inputs.index_select(1, cursor + places), labels.index_select(1, cursor + places)
        with torch.enable_grad(), deferred_weights(not self.learner.compiled):
            parameters = self.state.parameters(optimiser[0])
            for leaf, trained in zip(parameters.values(), self.state.trained, strict=True):
                leaf.requires_grad_(trained)
            state = parameters | buffers | self.state.statistics(running)
            values = over_runs(self.learner.models[0], self._loss, state, memory, *batch, drawn)
            leaves = [leaf for leaf in parameters.values() if leaf.requires_grad]
            found = iter(torch.autograd.grad(values.sum(), leaves, allow_unused=True, materialize_grads=True))
        gradients = [next(found) if leaf.requires_grad else torch.zeros_like(leaf) for leaf in parameters.values()]
        gradients.append(values.new_zeros(len(values), self.state.padding))
        gradient = torch.cat([part.reshape(len(part), -1) for part in gradients], dim=1)
        descend(optimiser, values.detach(), gradient, self.learner.compiled)
        for flat, was, owner in zip(running, before, self.state.owners, strict=True):
            flat.copy_(torch.where(optimiser[2][:, 0][owner], flat, was))
        losses.index_copy_(0, done, values.detach()[None])
        cursor.add_(len(places))
        done.add_(1)

    def _loss(self, model: nn.Module, memory: Memory, inputs: Tensor, labels: Tensor, drawn: list[Tensor]) -> Tensor:
        return self.learner.method.loss(model, memory, self.view.scale(inputs), labels, Replay(drawn))

    def _requests(self, size: int) -> list[Request]:
        """What a step over `size` samples asks of the noise: seen in a dry pass over a copy of each model."""
        asked = []
        for run, model in enumerate(self.learner.models):
            recorder = Recorder(self.learner.device)
            memory = {name: tensor[run] for name, tensor in self.memory.items()}
            inputs = self.view.scale(self.inputs[run, :size])
            with torch.no_grad():
                self.learner.method.loss(copy.deepcopy(model), memory, inputs, self.labels[run, :size], recorder)
            asked.append(recorder.requests)
        return merge(asked)

    def _see_that_it_stacks(self, size: int) -> None:
        """One loss of all runs on copies: a module that cannot be vmapped is found here, before anything is changed."""
        drawn = [request.harmless(self.learner.count, device=self.learner.device) for request in self.requests[size]]
        statistics = self.state.statistics([flat.clone() for flat in self.state.running])
        state = self.state.parameters() | self.state.buffers | statistics
        batch = self.inputs[:, :size], self.labels[:, :size]
        try:
            with torch.no_grad():
                over_runs(self.learner.models[0], self._loss, state, self.memory, *batch, drawn)
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:
            raise CannotStack(f"the model cannot be vmapped ({str(error).splitlines()[0][:120]})") from error

    def _renew_noise(self, index: int) -> None:
        """The noise of a new task. Batches of both sizes draw from one sequence of steps."""
        fresh = {size: self.learner.source(asked, "training noise", index) for size, asked in self.requests.items()}
        first = fresh[self.plan[0]]
        for size, source in fresh.items():
            source.share(first)
            if size in self.sources:
                self.sources[size].renew(source)
            else:
                self.sources[size] = source
