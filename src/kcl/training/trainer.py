"""The training of stacked runs on a task: batches of every run, one step over all of them, captured and replayed."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import vmap

from kcl.benchmarks.task import Task, View
from kcl.core.shapes import Float, Int
from kcl.functional.noise import Noise
from kcl.methods.episodic import recall
from kcl.methods.method import Memory, Method, Plan, Recalled
from kcl.ops import compiler
from kcl.ops.convolution_cuda import weights_beside
from kcl.ops.torch_private import make_fx, tree_flatten, tree_map, tree_unflatten
from kcl.training.checkpoint import Saved, Tree, fit, fit_all
from kcl.training.cuda_graph import GraphedStep, Watcher, drawn_beside
from kcl.training.draws import Recorder, Replay, Request, Source, merge
from kcl.training.optimizers import StackedMuon
from kcl.training.optimizers import rate as muon_rate
from kcl.training.restoring import whole_number
from kcl.training.single_run import BetweenSteps, OnStep, batch_order, batch_sizes, learning_rate
from kcl.training.state import CannotStack, StackedState, beside, descend, descend_apart, move, over_runs
from kcl.training.weight_average import update as update_average


class Stack(Protocol):
    """What the training needs of the runs it trains."""

    methods: Sequence[Method]
    method: Method
    models: list[nn.Module]
    training_seeds: Sequence[int]
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
        self._orders: dict[tuple[int, int], np.ndarray] = {}

    def orders(self, run: int) -> list[np.ndarray]:
        """The order of every epoch of a run."""
        return [self._order(run, epoch) for epoch in range(self.learner.method.settings.epochs)]

    def _order(self, run: int, epoch: int) -> np.ndarray:
        """Drawn once, though a plan and the batches both ask for it."""
        if (run, epoch) not in self._orders:
            seed, index = self.learner.training_seeds[run], self.tasks[run].index
            self._orders[run, epoch] = batch_order(seed, index, epoch, self.positions[run])
        return self._orders[run, epoch]

    def in_order(self, epoch: int) -> tuple[Tensor, Int[Tensor, "s n"]]:
        learner, inputs, labels = self.learner, [], []
        stored = learner.stored(self.tasks[0].train.inputs)
        for run, task in enumerate(self.tasks):
            order = torch.from_numpy(self._order(run, epoch)).to(learner.device)
            here = task.to(learner.device, stored)
            inputs.append(here.moved(order))
            labels.append(here.train.labels[order])
        return torch.stack(inputs), torch.stack(labels)

    def places(self, run: int, plan: Plan) -> np.ndarray:
        """Where a plan's samples are: in a slot, or after the slots in this task's samples as an epoch orders them."""
        slots, per_epoch, parts = len(plan.kept), len(plan.places) // self.learner.method.settings.epochs, []
        for epoch, order in enumerate(self.orders(run)):
            places = plan.places[epoch * per_epoch : (epoch + 1) * per_epoch]
            rank = np.empty(int(order.max()) + 1, dtype=np.int64)
            rank[order] = np.arange(len(order))
            parts.append(np.where(places < slots, places, slots + rank[np.maximum(places - slots, 0)]))
        return np.concatenate(parts)


class Trainer:
    """Tensors that stay where they are from task to task, and the step over them, captured once."""

    def __init__(
        self,
        learner: Stack,
        working: Memory,
        carried: Memory,
        examples: EpochExamples,
        view: View,
        plans: Sequence[Plan] | None,
    ) -> None:
        self.learner, self.state, self.view = learner, learner.state, view
        self.memory = {name: tensor.clone() for name, tensor in working.items()}
        self.velocities = {name: torch.zeros_like(self.memory[name]) for name in learner.method.trained}
        """Of what is kept of the task and follows SGD."""
        self.carried = carried
        settings = learner.method.settings
        self.length, self.batch, self.epochs = examples.length, settings.batch_size, settings.epochs
        self.inputs, self.labels = examples.in_order(0)
        self.cursor = torch.zeros(1, dtype=torch.int64, device=learner.device)
        self.updates = settings.updates_per_batch
        sizes = batch_sizes(learner.models[0], self.length, self.batch)
        self.plan = [size for size in sizes for _ in range(self.updates)]
        """The size of the batch of every update of an epoch."""
        self.places = torch.arange(max(sizes), device=learner.device)
        muon = settings.optimizer == "muon"
        self.muon = StackedMuon(learner.models[0], learner.state.layout) if muon else None
        whole = muon or learner.method.steers or learner.state.averages or learner.count > 1
        self.apart = learner.compiled and learner.device.type == "cpu" and not whole
        """Whether each parameter is moved by itself: nothing needs the gradient of all of them in one tensor."""
        self.steps = self.epochs * len(self.plan)
        self.recalls = self._recalls(examples, plans)
        self.done = torch.zeros(1, dtype=torch.int64, device=learner.device)
        self.losses = torch.zeros(self.steps, learner.count, device=learner.device)
        self._await_draws: Callable[[], None] = lambda: None
        self.requests = {size: self._requests(size) for size in set(self.plan)}
        self._see_that_it_stacks(self.plan[0])
        self.graphs: dict[int, GraphedStep] = {}
        self.compiled: dict[int, Callable[[], Any]] = {}
        self.sources: dict[int, Source] = {}
        self.steps_done = 0

    def suits(self, working: Memory, examples: EpochExamples, view: View, plans: Sequence[Plan] | None) -> bool:
        """Whether another task has the shapes this trainer was made for."""
        shapes = {name: (tensor.shape, tensor.dtype) for name, tensor in working.items()}
        recalled = [] if plans is None or plans[0].places.shape[1] == 0 else [plans[0].places.shape[1]]
        return (
            shapes == {name: (tensor.shape, tensor.dtype) for name, tensor in self.memory.items()}
            and (examples.length, examples.shape, examples.dtype)
            == (self.length, self.inputs.shape[2:], self.inputs.dtype)
            and (view.mean, view.std) == (self.view.mean, self.view.std)
            and recalled == [places.shape[2] for places in self.recalls[:1]]
        )

    def rehearse(self) -> None:
        self._renew_noise(0)
        self._step(self.plan[0])

    def train(
        self,
        index: int,
        working: Memory,
        examples: EpochExamples,
        plans: Sequence[Plan] | None,
        on_step: OnStep,
        between_steps: BetweenSteps = lambda: None,
        saved: Saved | None = None,
    ) -> None:
        """`saved`: go on in the midst of the task, from where this was saved."""
        for name, tensor in working.items():
            self.memory[name].copy_(tensor)
        for velocity in self.velocities.values():
            velocity.zero_()
        for tensor, planned in zip(self.recalls, self._recalls(examples, plans), strict=True):
            tensor.copy_(planned)
        settings = [method.settings for method in self.learner.methods]
        self.state.restart(
            [learning_rate(own, index) for own in settings],
            [own.momentum for own in settings],
            [muon_rate(own, index) for own in settings],
        )
        self._renew_noise(index)
        self.steps_done = 0 if saved is None else self._go_on(saved)
        self.done.fill_(self.steps_done)
        watcher = Watcher(self.learner.device, self.losses, on_step, self.steps_done)
        for epoch in range(self.steps_done // len(self.plan), self.epochs):
            inputs, labels = examples.in_order(epoch)
            self.inputs.copy_(inputs)
            self.labels.copy_(labels)
            begun = self.steps_done - epoch * len(self.plan)
            self.cursor.fill_(sum(self.plan[: begun - begun % self.updates : self.updates]))
            for size in self.plan[begun:]:
                self._run_step(size)
                self.steps_done += 1
                watcher.one_more()
                between_steps()
        watcher.finish()

    def saved(self) -> Saved:
        """What the steps of a task have changed beside the weights; to be asked for between two steps."""
        tensors: Tree = {"velocity": self.state.velocity, "noise": self.sources[self.plan[0]].state()}
        if self.velocities:
            tensors |= {"trained": self.trained(), "velocities": self.velocities}
        return Saved(tensors, {"step": self.steps_done})

    def trained(self) -> Memory:
        """What is kept of the task and follows SGD, as the steps done have left it."""
        return {name: self.memory[name] for name in self.velocities}

    def _go_on(self, saved: Saved) -> int:
        self.state.velocity.copy_(fit(saved.tensors.get("velocity"), self.state.velocity, "velocity"))
        for part, own in (("trained", self.trained()), ("velocities", self.velocities)):
            for name, tensor in fit_all(saved.tensors.get(part), own, part).items():
                own[name].copy_(tensor)
        self.sources[self.plan[0]].restore(saved.tensors.get("noise"))  # the others follow it
        return int(whole_number(saved.about.get("step"), "the step", self.steps))

    def _recalls(self, examples: EpochExamples, plans: Sequence[Plan] | None) -> list[Tensor]:
        """Places and weights of what is recalled (steps × s × m), or nothing."""
        if plans is None or plans[0].places.shape[1] == 0:
            return []
        places = np.stack([examples.places(run, plan) for run, plan in enumerate(plans)], axis=1)
        weights = np.stack([plan.weights for plan in plans], axis=1)
        return [torch.from_numpy(array).to(self.learner.device) for array in (places, weights)]

    def _run_step(self, size: int) -> None:
        if self.learner.device.type != "cuda":
            self._step(size)
            return
        if size not in self.graphs:
            changed = [*self.state.changed(), *self.carried.values(), self.cursor, self.done]
            changed += [*self.trained().values(), *self.velocities.values()]
            changed += self.sources[size].changes
            another = next(iter(self.graphs.values()), None)
            self.graphs[size] = GraphedStep(lambda: self._step(size), changed, another)
        self.graphs[size]()

    @torch.no_grad()
    def _step(self, size: int) -> None:
        """One batch of every run, from the cursor on: draw, loss, gradient, update. Nothing leaves the device."""
        if not self.learner.compiled:
            with drawn_beside(self.sources[size], self.learner.device) as self._await_draws:
                self._advance(*self._tensors(size))
            return
        self.sources[size].draw()
        if size in self.compiled:
            self.compiled[size]()
            return
        with warnings.catch_warnings(action="ignore"):  # of the compiler, about parts of its own
            self.compiled[size] = self._compile(self._tensors(size))
            self.compiled[size]()

    def _compile(self, tensors: tuple[Any, ...]) -> Callable[[], Any]:
        """The step over these tensors, which stay where they are, traced and compiled."""
        given, structure = tree_flatten(tensors)
        copies = [tensor.clone() for tensor in given]  # tracing runs the step
        traced = make_fx(lambda *flat: self._advance(*tree_unflatten(list(flat), structure)))(*copies)
        return partial(compiler.compile_step(traced, copies), *given)

    def _tensors(self, size: int) -> tuple[Any, ...]:
        """Everything a step over `size` samples reads and changes."""
        source, places = self.sources[size], self.places[:size]
        epoch = [self.inputs, self.labels, places, self.cursor, self.done, self.losses]
        kept = self.memory, self.velocities, self.carried, self.recalls
        averages = [average.tensors() for average in self.state.averages]
        own = self.state.optimiser(self.apart), averages, self.state.running, self.state.buffers
        return *own, kept, epoch, source.drawn

    def _advance(
        self,
        optimiser: list[Any],
        averages: list[list[Tensor]],
        running: list[Tensor],
        buffers: dict[str, Tensor],
        kept: tuple[Memory, Memory, Memory, list[Tensor]],
        epoch: list[Tensor],
        drawn: list[Tensor],
    ) -> None:
        """The step, once its noise is drawn. A function of its arguments alone, so that it can be traced."""
        inputs, labels, places, cursor, done, losses = epoch
        memory, velocities, carried, recalls = kept
        before = [flat.clone() for flat in running]
        here = cursor + places
        batch = inputs.index_select(1, here), labels.index_select(1, here)
        number = done if self.updates == 1 else done // self.updates
        recalled = self._recall(memory, carried, [planned.index_select(0, number)[0] for planned in recalls], epoch)
        with torch.enable_grad(), weights_beside(self.learner.device, not self.learner.compiled):
            parameters = self.state.parameters(optimiser[0])
            for leaf, trained in zip(parameters.values(), self.state.layout.trained, strict=True):
                leaf.requires_grad_(trained)
            learned = {name: memory[name].detach().requires_grad_() for name in velocities}
            state = parameters | buffers | self.state.statistics(running)
            values = over_runs(self.learner.models[0], self._losses, state, memory | learned, *batch, recalled, drawn)
            leaves, several = [leaf for leaf in parameters.values() if leaf.requires_grad], values.shape[1] > 1
            leaves += learned.values()
            found = [
                iter(torch.autograd.grad(loss.sum(), leaves, None, several, allow_unused=True, materialize_grads=True))
                for loss in values.unbind(1)
            ]
        values, alive = values.detach(), optimiser[2]
        changed = self._descend(optimiser, values, parameters, found, carried)
        for (name, velocity), slope in zip(velocities.items(), found[0], strict=True):
            move(memory[name], velocity, slope, optimiser)
        for name, after in changed.items():
            carried[name].copy_(torch.where(beside(alive, after), after, carried[name]))
        for flat, was, owner in zip(running, before, self.state.owners, strict=True):
            flat.copy_(torch.where(alive[:, 0][owner], flat, was))
        for average in averages:
            update_average(average, optimiser[0], running, alive, self.state.owners)
        losses.index_copy_(0, done, values[None, :, 0])
        done.add_(1)
        cursor.add_(len(places) if self.updates == 1 else len(places) * (done % self.updates == 0))

    def _descend(
        self,
        optimiser: list[Any],
        values: Float[Tensor, "s l"],
        parameters: dict[str, Tensor],
        found: list[Iterator[Tensor]],
        carried: Memory,
    ) -> dict[str, Tensor]:
        """Move the weights by the gradients found of each loss, and tell what of `carried` changes with that."""
        if self.apart:
            own = [next(found[0]) if leaf.requires_grad else None for leaf in parameters.values()]
            descend_apart(optimiser, values.sum(1), own)
            return {}
        gradients = []
        for slopes in found:
            parts = [next(slopes) if leaf.requires_grad else torch.zeros_like(leaf) for leaf in parameters.values()]
            parts.append(values.new_zeros(len(values), self.state.layout.padding))
            gradients.append(torch.cat([part.reshape(len(part), -1) for part in parts], dim=1))
        gradient, changed = gradients[0], dict[str, Tensor]()
        if self.learner.method.steers:
            steer = vmap(self.learner.method.direction)
            gradient, changed = steer(optimiser[0], torch.stack(gradients, dim=1), carried)
        moved = descend if self.muon is None else self.muon.descend
        moved(optimiser, values.sum(1), gradient, self.learner.compiled)
        return changed

    def _recall(
        self, memory: Memory, carried: Memory, planned: Sequence[Tensor], epoch: Sequence[Tensor]
    ) -> list[Recalled]:
        """What every run recalls in a step, as stored; `planned`: places and weights (s × m), or nothing."""
        if not planned:
            return []
        places, weights = planned
        own = (places - carried["inputs"].shape[1]).clamp_min(0)
        runs = torch.arange(len(own), device=own.device)[:, None]
        inputs, labels = epoch[0][runs, own], epoch[1][runs, own]
        return [vmap(recall)(carried, places, weights, inputs, labels, memory["classes"])]

    def _losses(
        self,
        model: nn.Module,
        memory: Memory,
        inputs: Tensor,
        labels: Tensor,
        recalled: list[Recalled],
        drawn: list[Tensor] | Noise,
    ) -> Float[Tensor, " l"]:
        """All losses of a step of one run."""
        noise = Replay(drawn, self._await_draws) if isinstance(drawn, list) else drawn
        scaled = recalled[0]._replace(inputs=self.view.scale(recalled[0].inputs)) if recalled else None
        losses = self.learner.method.observe(model, memory, self.view.scale(inputs), labels, scaled, noise)
        return torch.stack(losses)

    def _requests(self, size: int) -> list[Request]:
        """What a step over `size` samples asks of the noise: seen in a dry pass over a copy of each model."""
        asked = []
        for run, model in enumerate(self.learner.models):
            recorder = Recorder(self.learner.device)
            memory, recalled = tree_map(lambda tensor, run=run: tensor[run], (self.memory, self._first_recalled()))
            batch = self.inputs[run, :size], self.labels[run, :size]
            with torch.no_grad():
                self._losses(copy.deepcopy(model), memory, *batch, recalled, recorder)
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
                given = self.memory, *batch, self._first_recalled(), drawn
                over_runs(self.learner.models[0], self._losses, state, *given, vmapped=True)
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:
            raise CannotStack(f"the model cannot be vmapped ({str(error).splitlines()[0][:120]})") from error

    def _first_recalled(self) -> list[Recalled]:
        planned = [tensor[0] for tensor in self.recalls]
        return self._recall(self.memory, self.carried, planned, [self.inputs, self.labels])

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
