"""Many runs trained together as one stacked model, the whole step in one CUDA graph.

Runs are independent, so the gradient of the sum of their losses is each run's own gradient, and SGD acts entry by
entry: stacking changes nothing but the speed. `nets` and `methods` stay single-run code; the loss is vmapped over
the leading dimension of everything a run owns.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.fx.experimental.proxy_tensor import make_fx

from kcl.benchmarks.task import Task, View
from kcl.errors import KclError
from kcl.methods.method import Memory, Method
from kcl.nets.backbone import Backbone
from kcl.randomness import numpy_generator
from kcl.shapes import Float, Int
from kcl.training.graph import GraphedStep, Watcher
from kcl.training.learner import Learner
from kcl.training.noise import PhiloxSource, Recorder, Replay, Request, RunNoise, SeparateSource, Source
from kcl.training.run import (
    OnStep,
    batch_order,
    batch_sizes,
    build_model,
    check_device,
    learning_rate,
    memory_use,
    seen,
)


class CannotStack(Exception):
    """These runs cannot be trained together; they can be trained one after another."""


class StackedRuns(Learner):
    """s runs of one method whose settings differ in numbers only."""

    def __init__(
        self,
        methods: Sequence[Method],
        make_backbones: Sequence[Callable[[], Backbone]],
        seeds: Sequence[int],
        device: str | torch.device,
        compiled: bool = False,
    ) -> None:
        """`compiled`: PyTorch's compiler fuses the step. That takes it a while, so it pays for long runs only."""
        self.methods, self.seeds, self.device = methods, seeds, check_device(device)
        self.method, self.count = methods[0], len(seeds)
        self.answers_unseen, self.compiled = self.method.answers_unseen, compiled
        self.models = [
            build_model(method, make, seed).to(self.device)
            for method, make, seed in zip(methods, make_backbones, seeds, strict=True)
        ]
        self.state = StackedState(self.models)
        self.kept: dict[int, tuple[Memory, View]] = {}
        self._stored: dict[int, tuple[Tensor, Tensor]] = {}
        self._trainer: _Trainer | None = None

    def learn(self, tasks: Sequence[Task], on_step: OnStep) -> None:
        index, view = tasks[0].index, tasks[0].view.to(self.device)
        memory, working, examples = self._begin(tasks, view)
        if self._trainer is None or not self._trainer.suits(working, examples):
            self._trainer = _Trainer(self, working, examples, view)
        self._trainer.train(index, working, examples, on_step)
        with torch.no_grad():
            ended = [
                method.end_task(model, {name: tensor[run] for name, tensor in memory.items()})
                for run, (method, model) in enumerate(zip(self.methods, self.models, strict=True))
            ]
        self.kept[index] = (_stack(ended, self.device), view)

    def _begin(self, tasks: Sequence[Task], view: View) -> tuple[Memory, Memory, _Examples]:
        """What is kept of the task, the same as the network sees it, and what there is to train on."""
        begun = []
        for method, model, task, seed in zip(self.methods, self.models, tasks, self.seeds, strict=True):
            method.check(task)
            begun.append(method.begin_task(model, task, numpy_generator(seed, "coreset", task.index)))
        memory = _stack([learnable.memory for learnable in begun], self.device)
        examples = _Examples(self, tasks, [learnable.positions for learnable in begun])
        return memory, seen(memory, view, runs=True), examples

    def rehearse(self, tasks: Sequence[Task]) -> None:
        """One step over the first batch, to see that the runs stack and what memory that takes."""
        view = tasks[0].view.to(self.device)
        _, working, examples = self._begin(tasks, view)
        _Trainer(self, working, examples, view).rehearse()

    @torch.no_grad()
    def accuracy(self, tasks: Sequence[Task]) -> list[float]:
        index, length = tasks[0].index, len(tasks[0].test)
        if length == 0 or any(len(task.test) != length for task in tasks):
            raise KclError(f"task {index} must have test samples, the same number in every run")
        if index in self.kept:
            memory, view = self.kept[index]
        else:
            unseen = [method.unseen_memory(task) for method, task in zip(self.methods, tasks, strict=True)]
            memory, view = _stack(unseen, self.device), tasks[0].view.to(self.device)
        working = seen(memory, view, runs=True)
        source = self.source(self._classifier_requests(working), "test noise", index)
        source.draw()

        def answers(model: nn.Module, memory: Memory, inputs: Tensor, drawn: list[Tensor]) -> Tensor:
            classifier = self.method.classifier(model, memory, Replay(drawn))
            return self.method.logits(model, classifier, view.scale(inputs)).argmax(-1)

        stored, batch = self.stored(tasks[0].test.inputs), self._evaluation_batch(tasks[0])
        correct = torch.zeros(self.count, dtype=torch.int64, device=self.device)
        moves = [task.view.to(self.device).move for task in tasks]
        rows = torch.stack([task.test.rows for task in tasks]).to(self.device)
        labels = torch.stack([task.test.labels for task in tasks]).to(self.device)
        for part, wanted in zip(rows.split(batch, dim=1), labels.split(batch, dim=1), strict=True):
            inputs = torch.stack([move(stored[own]) for move, own in zip(moves, part, strict=True)])
            correct += (self.over_runs(answers, working, inputs, source.drawn) == wanted).sum(1)
        return [100.0 * right / length for right in correct.tolist()]

    @property
    def diverged(self) -> list[bool]:
        return (~self.state.alive[:, 0]).tolist()

    def memory_use(self) -> list[dict[str, int]]:
        return [
            memory_use([{name: tensor[run] for name, tensor in memory.items()} for memory, _ in self.kept.values()])
            for run in range(self.count)
        ]

    # What the trainer and the evaluation share

    def over_runs(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """function(model, *arguments) for every run at once: arguments carry the runs in their first dimension."""
        call = _Call(self.models[0], function)

        def one(state: dict[str, Tensor], arguments: Any) -> Any:
            return functional_call(call, {f"model.{name}": tensor for name, tensor in state.items()}, arguments)

        return vmap(one)(self.state.parameters | self.state.buffers, arguments)

    def source(self, requests: Sequence[Request], purpose: str, index: int) -> Source:
        if self.device.type == "cpu":
            return SeparateSource(requests, [RunNoise(self.device, seed, purpose, index) for seed in self.seeds])
        return PhiloxSource(requests, self.device, self.seeds, purpose, index)

    def stored(self, inputs: Tensor) -> Tensor:
        """A stored array on the device: moved once, as bytes, for all runs and tasks."""
        key = id(inputs)
        if key not in self._stored:  # the original is kept beside its copy, so that its id stays its own
            self._stored[key] = (inputs, inputs.to(self.device))
        return self._stored[key][1]

    def _classifier_requests(self, working: Memory) -> list[Request]:
        recorder = Recorder(self.device)
        self.method.classifier(self.models[0], {name: tensor[0] for name, tensor in working.items()}, recorder)
        return recorder.requests

    def _evaluation_batch(self, task: Task) -> int:
        """How many test samples at once: an eighth of the free memory, at a generous guess of what one takes."""
        free = torch.cuda.mem_get_info(self.device)[0] if self.device.type == "cuda" else 2**33
        each = 256 * task.test.inputs[0].numel() + 16 * self.method.settings.bases
        return max(1, min(len(task.test), free // 8 // (each * self.count)))


class StackedState:
    """All parameters of all runs in one tensor, of which the models' own parameters become views.

    So whatever a method does to one run's model is done to the stack, and one update moves everything.
    """

    def __init__(self, models: Sequence[nn.Module]) -> None:
        template, runs = models[0], len(models)
        starts, size = {}, 0
        for name, parameter in template.named_parameters():
            starts[name] = size
            size += -(-parameter.numel() // 64) * 64  # aligned, so that batched products take the fast path
        device = next(template.parameters()).device
        self.flat = torch.zeros(runs, size, device=device)
        self.velocity, self.gradient = torch.zeros_like(self.flat), torch.zeros_like(self.flat)
        self.alive = torch.ones(runs, 1, dtype=torch.bool, device=device)
        self.momentum, self.rate = torch.zeros(runs, 1, device=device), torch.zeros(runs, 1, device=device)
        self.parameters: dict[str, Tensor] = {}
        self.buffers: dict[str, Tensor] = {}
        self._gradients: list[Tensor] = []
        for name, parameter in template.named_parameters():
            place = slice(starts[name], starts[name] + parameter.numel())
            stacked = self.flat[:, place].view(runs, *parameter.shape)
            for run, model in enumerate(models):
                own = model.get_parameter(name)
                stacked[run].copy_(own.detach())
                own.data = stacked[run]
            self.parameters[name] = stacked.detach().requires_grad_(parameter.requires_grad)
            if parameter.requires_grad:
                self._gradients.append(self.gradient[:, place].view(runs, *parameter.shape))
        for name, _ in template.named_buffers():
            self.buffers[name] = torch.stack([model.get_buffer(name) for model in models])
            for run, model in enumerate(models):
                model.get_buffer(name).data = self.buffers[name][run]

    def restart(self, rates: Sequence[float], momenta: Sequence[float]) -> None:
        """Begin the optimiser anew for a task."""
        self.velocity.zero_()
        self.rate.copy_(torch.tensor(rates)[:, None])
        self.momentum.copy_(torch.tensor(momenta)[:, None])

    @torch.no_grad()
    def descend(self, losses: Float[Tensor, " s"], gradients: Sequence[Tensor]) -> None:
        """One step of SGD with momentum. A run whose loss is not finite stops for good, as it was before the step."""
        torch._foreach_copy_(self._gradients, list(gradients))
        self.alive.logical_and_(torch.isfinite(losses)[:, None])
        self.velocity.mul_(self.momentum).add_(self.gradient)
        self.flat.copy_(torch.where(self.alive, self.flat - self.rate * self.velocity, self.flat))

    def everything(self) -> list[Tensor]:
        """What a step changes."""
        return [self.flat, self.velocity, self.alive, *self.buffers.values()]


class _Examples:
    """The training samples of one task, run by run, in the order of an epoch."""

    def __init__(self, learner: StackedRuns, tasks: Sequence[Task], positions: Sequence[Any]) -> None:
        if len({len(own) for own in positions}) != 1 or len({id(task.train.inputs) for task in tasks}) != 1:
            raise CannotStack("the runs have training sets of different sizes or from different arrays")
        self.learner, self.tasks, self.positions = learner, tasks, positions
        self.length = len(positions[0])
        self.shape = tuple(tasks[0].train.inputs.shape[1:])

    def in_order(self, epoch: int) -> tuple[Tensor, Int[Tensor, "s n"]]:
        learner, inputs, labels = self.learner, [], []
        stored = learner.stored(self.tasks[0].train.inputs)
        for seed, task, positions in zip(learner.seeds, self.tasks, self.positions, strict=True):
            order = torch.from_numpy(batch_order(seed, task.index, epoch, positions))
            inputs.append(task.view.to(learner.device).move(stored[task.train.rows[order].to(learner.device)]))
            labels.append(task.train.labels[order])
        return torch.stack(inputs), torch.stack(labels).to(learner.device)


class _Trainer:
    """Tensors that stay where they are from task to task, and the step over them, captured once."""

    def __init__(self, learner: StackedRuns, working: Memory, examples: _Examples, view: View) -> None:
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
        self.graphs: dict[int, GraphedStep] = {}
        self.compiled: dict[int, Callable[..., Sequence[Tensor]]] = {}
        self.sources: dict[int, Source] = {}

    def suits(self, working: Memory, examples: _Examples) -> bool:
        """Whether another task has the shapes this trainer was made for."""
        shapes = {name: tensor.shape for name, tensor in working.items()}
        return (
            shapes == {name: tensor.shape for name, tensor in self.memory.items()}
            and examples.length == self.length
            and examples.shape == self.inputs.shape[2:]
        )

    def rehearse(self) -> None:
        self._renew_noise(0)
        self._step(self.plan[0])

    def train(self, index: int, working: Memory, examples: _Examples, on_step: OnStep) -> None:
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
            changed = [*self.state.everything(), self.cursor, self.done, *self.sources[size].changes]
            self.graphs[size] = GraphedStep(lambda: self._step(size), changed)
        self.graphs[size]()

    @torch.no_grad()
    def _step(self, size: int) -> None:
        """One batch of every run, from the cursor on: draw, loss, gradient, update. Nothing leaves the device."""
        source = self.sources[size]
        source.draw()
        places = self.cursor + torch.arange(size, device=self.learner.device)
        inputs, labels = self.inputs.index_select(1, places), self.labels.index_select(1, places)
        losses, *gradients = self._computed(size)(inputs, labels, *source.drawn)
        self.state.descend(losses, gradients)
        self.losses.index_copy_(0, self.done, losses[None])
        self.cursor += size
        self.done += 1

    def _computed(self, size: int) -> Callable[..., Sequence[Tensor]]:
        """Losses and gradients of a batch of `size`: as they stand, or traced and compiled."""
        if not self.learner.compiled:
            return self._losses_and_gradients
        if size not in self.compiled:
            batch = self.inputs[:, :size], self.labels[:, :size]
            traced = make_fx(self._losses_and_gradients)(*batch, *self.sources[size].drawn)
            self.compiled[size] = torch.compile(traced, dynamic=False, fullgraph=True)
        return self.compiled[size]

    def _losses_and_gradients(self, inputs: Tensor, labels: Tensor, *drawn: Tensor) -> list[Tensor]:
        with torch.enable_grad():
            losses = self.learner.over_runs(self._loss, self.memory, inputs, labels, list(drawn))
            leaves = [tensor for tensor in self.state.parameters.values() if tensor.requires_grad]
            gradients = torch.autograd.grad(losses.sum(), leaves, allow_unused=True, materialize_grads=True)
        return [losses.detach(), *gradients]

    def _loss(self, model: nn.Module, memory: Memory, inputs: Tensor, labels: Tensor, drawn: list[Tensor]) -> Tensor:
        return self.learner.method.loss(model, memory, self.view.scale(inputs), labels, Replay(drawn))

    def _requests(self, size: int) -> list[Request]:
        """What a step over `size` samples asks of the noise: seen in a dry pass over a copy of one model."""
        recorder = Recorder(self.learner.device)
        model = copy.deepcopy(self.learner.models[0])
        memory = {name: tensor[0] for name, tensor in self.memory.items()}
        inputs = self.view.scale(self.inputs[0, :size])
        with torch.no_grad():
            self.learner.method.loss(model, memory, inputs, self.labels[0, :size], recorder)
        return recorder.requests

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


class _Call(nn.Module):
    """A function of a model as a module's forward, so that `functional_call` can lend it a run's parameters."""

    def __init__(self, model: nn.Module, function: Callable[..., Any]) -> None:
        super().__init__()
        self.model, self.function = model, function

    def forward(self, *arguments: Any) -> Any:
        return self.function(self.model, *arguments)


def _stack(memories: Sequence[Memory], device: torch.device) -> Memory:
    shapes = [{name: tensor.shape for name, tensor in memory.items()} for memory in memories]
    if any(other != shapes[0] for other in shapes):
        raise CannotStack("the runs keep memories of different shapes")
    return {name: torch.stack([memory[name] for memory in memories]).to(device) for name in memories[0]}
