"""One run in plain PyTorch, written without regard to speed: the reference that the engine is held against.

It shares with `kcl.training` only what is not in question: batch orders and sizes, learning rates, initial weights and
noise. Gradients, optimisers, averages, what happens at a loss that is not finite, and evaluation are its own.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from kcl.benchmarks.task import Task, View
from kcl.core.randomness import numpy_generator
from kcl.core.settings import Settings
from kcl.functional import orthogonal
from kcl.functional.noise import RunNoise
from kcl.methods.method import Batch, Memory, Method, Replayed, ReplayPlan
from kcl.methods.recipes import METHODS
from kcl.nets.backbone import Backbone
from kcl.nets.flat import Layout, matrix_names
from kcl.training.checkpoint import digest
from kcl.training.evaluation import predicted
from kcl.training.optimizers import learning_rate
from kcl.training.stacked_task import batch_order, batch_sizes
from kcl.training.state import build_model, running_statistics
from kcl.training.step_progress import BetweenSteps, OnStep, Step
from kcl.training.weight_average import weights_size

QUERIES_AT_ONCE = 2048

TRAINED = [name for name, method in METHODS.items() if method.trains]
"""Methods with training steps, which most tests of the engine are about."""


def on_device(device: torch.device, memory: Memory) -> Memory:
    return {name: tensor.to(device) for name, tensor in memory.items()}


class WeightAverage(nn.Module):
    """`model` holds the average."""

    updates: Tensor

    def __init__(self, model: nn.Module, settings: Settings) -> None:
        super().__init__()
        self.model = copy.deepcopy(model).requires_grad_(False)
        self.decay, self.ramp = settings.weight_average, settings.average_ramp
        self.register_buffer("updates", torch.zeros(1, dtype=torch.int64, device=next(model.parameters()).device))

    @torch.no_grad()
    def update(self, model: nn.Module) -> None:
        done = int(self.updates)
        weight = 1.0 - min(self.decay, (1.0 + done) / (1.0 + self.ramp + done))
        averaged = [*self.model.parameters(), *running_statistics(self.model)]
        for average, present in zip(averaged, [*model.parameters(), *running_statistics(model)], strict=True):
            if average.is_floating_point():
                average.lerp_(present, weight)
            else:
                average.copy_(present)
        for average, present in zip(self.model.buffers(), model.buffers(), strict=True):
            if not any(average is each for each in averaged):
                average.copy_(present)
        self.updates += 1


class Muon(torch.optim.Optimizer):
    """Muon for the backbone's matrices, SGD for all else."""

    def __init__(
        self, model: nn.Module, lr: float, muon_lr: float, momentum: float, others: Sequence[nn.Parameter] = ()
    ) -> None:
        """`others`: what is trained and is no parameter of the model."""
        matrices = {f"backbone.{name}" for name in matrix_names(model.get_submodule("backbone"))}
        trained = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
        rest = [parameter for name, parameter in trained.items() if name not in matrices]
        first = {"params": [trained[name] for name in trained if name in matrices], "matrices": True, "lr": muon_lr}
        super().__init__([first, {"params": [*rest, *others], "matrices": False, "lr": lr}], {"momentum": momentum})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            momentum = group["momentum"]
            for parameter in group["params"]:
                velocity = gradient = parameter.grad
                if gradient is None:
                    continue
                if momentum:
                    state = self.state[parameter]
                    if "momentum_buffer" not in state:
                        state["momentum_buffer"] = torch.zeros_like(parameter)
                    velocity = state["momentum_buffer"].mul_(momentum).add_(gradient)
                if group["matrices"]:
                    velocity = orthogonal.update((gradient + momentum * velocity).flatten(1)[None]).view_as(parameter)
                parameter.sub_(group["lr"] * velocity)


def optimizer_of(
    model: nn.Module, settings: Settings, index: int, others: Sequence[nn.Parameter] = ()
) -> torch.optim.Optimizer:
    """For a task. `others`: what is trained and is no parameter of the model."""
    lr = learning_rate(settings, index)
    if settings.optimizer == "muon":
        return Muon(model, lr, settings.muon_lr * settings.muon_lr_decay**index, settings.momentum, others)
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad] or [torch.zeros(0)]
    return torch.optim.SGD([*parameters, *others], lr=lr, momentum=settings.momentum, fused=True)


class Kept(NamedTuple):
    """What the run keeps of a learned task."""

    memory: Memory
    view: View


class Midway(NamedTuple):
    """What changes in the course of a task beside the model."""

    noise: RunNoise
    optimizer: torch.optim.Optimizer
    trained: dict[str, nn.Parameter]


class ReferenceRun:
    """A method, a seed and everything learned so far."""

    def __init__(
        self,
        method: Method,
        make_backbone: Callable[[], Backbone],
        seed: int,
        device: str | torch.device = "cpu",
    ) -> None:
        self.method, self.seed, self.device = method, seed, torch.device(device)
        self.kept: dict[int, Kept] = {}
        self.method_state: Memory | None = None
        self.diverged = False
        self.midway: Midway | None = None
        self.model = build_model(method, make_backbone, seed).to(self.device)
        self.average = WeightAverage(self.model, method.settings) if method.settings.weight_average else None

    def learn(self, task: Task, on_step: OnStep = lambda _: None, between_steps: BetweenSteps = lambda: None) -> None:
        self.method.check(task)
        settings = self.method.settings
        positions, memory = self.method.begin_task(self.model, task, numpy_generator(self.seed, "coreset", task.index))
        memory = on_device(self.device, memory)
        moved = task.to(self.device, task.train.inputs.to(self.device))
        working = as_seen(memory, moved.view)
        trained = {name: nn.Parameter(working[name].clone()) for name in self.method.trained_state}
        working |= trained
        if self.method_state is None:
            self.method_state = on_device(self.device, self.method.initial_state(self.model, task))
        orders = [batch_order(self.seed, task.index, epoch, positions) for epoch in range(settings.epochs)]
        sizes = batch_sizes(self.model, len(positions), settings.batch_size)
        plan = self.method.plan(
            self.method_state, task, orders, sizes, numpy_generator(self.seed, "recalled", task.index)
        )
        noise = RunNoise(self.device, self.seed, "training noise", task.index)
        optimizer = optimizer_of(self.model, settings, task.index, list(trained.values()))
        self.midway = Midway(noise, optimizer, trained)
        updates = settings.updates_per_batch
        steps = settings.epochs * len(sizes) * updates
        statistics = running_statistics(self.model)
        batches = [batch for order in orders for batch in torch.from_numpy(order).to(self.device).split(sizes)]
        for step in range(1, steps + 1):
            batch = batches[(step - 1) // updates]
            inputs = moved.view.scale(moved.moved(batch))
            before = [buffer.clone() for buffer in statistics]
            replayed = replayed_in(self.method, self.method_state, moved, working, plan, (step - 1) // updates)
            losses = self.method.observe(self.model, working, Batch(inputs, moved.train.labels[batch], replayed), noise)
            optimizer.zero_grad(set_to_none=True)
            changed = self._differentiate(losses)
            if not all(math.isfinite(loss.item()) for loss in losses):
                self.diverged = True
                for buffer, value in zip(statistics, before, strict=True):
                    buffer.copy_(value)
                break
            optimizer.step()
            if self.average is not None:
                self.average.update(self.model)
            self.method_state |= changed
            on_step(Step(step, steps, losses[0].item()))
            between_steps()
        self.midway = None
        with torch.no_grad():
            memory |= {name: tensor.detach().clone() for name, tensor in trained.items()}
            ended = self.method.review(self.model_at_test, self.method.end_task(self.model, memory), moved)
            rng = numpy_generator(self.seed, "consolidation", task.index)
            self.method_state = self.method.consolidate(self.model, self.method_state, moved, plan, rng)
        for part in task.parts:
            part_memory = ended if part is task else on_device(self.device, self.method.unseen_memory(part))
            self.kept[part.index] = Kept(part_memory, part.view.to(self.device))

    def _differentiate(self, losses: Sequence[Tensor]) -> Memory:
        """Leave in every parameter's `grad` what the optimiser is to follow; what changes in the method's state."""
        if not self.method.modifies_gradient:
            losses[0].backward()
            return {}
        assert self.method_state is not None
        layout, named = Layout(self.model), dict(self.model.named_parameters())
        trained = {name: parameter for name, parameter in named.items() if parameter.requires_grad}
        frozen = {name: torch.zeros_like(named[name]) for name in named.keys() - trained.keys()}
        flat = []
        for loss in losses:
            gradients = torch.autograd.grad(
                loss, list(trained.values()), retain_graph=True, allow_unused=True, materialize_grads=True
            )
            flat.append(layout.flatten(frozen | dict(zip(trained, gradients, strict=True))))
        with torch.no_grad():
            followed, changed = self.method.direction(layout.weights(self.model), torch.stack(flat), self.method_state)
        for name, part in layout.split(followed).items():
            if name in trained:
                named[name].grad = part
        return changed

    # Answering

    @property
    def model_at_test(self) -> nn.Module:
        return self.model if self.average is None else self.average.model

    @torch.no_grad()
    def scores(self, task: Task) -> Tensor:
        """Scores of the classes of a task for its test samples."""
        method, model = self.method, self.model_at_test
        if task.index in self.kept:
            everything = [as_seen(*kept) for kept in self.kept.values()]
            memory = as_seen(*self.kept[task.index]) | method.in_common(model, everything)
        else:
            memory = on_device(self.device, method.unseen_memory(task))
        noise = RunNoise(self.device, self.seed, "test noise", task.index)
        classifier = method.classifier(model, method.show(memory), noise)
        stored, view = task.test.inputs[task.test.rows].to(self.device), task.view.to(self.device)
        return torch.cat([method.answer(model, classifier, view(part)) for part in stored.split(QUERIES_AT_ONCE)])

    def accuracy(self, task: Task) -> float:
        correct = predicted(self.scores(task)) == task.test.labels.to(self.device)
        return 100.0 * int(correct.sum()) / len(task.test)

    def memory_use(self) -> dict[str, int]:
        use = self.method.memory_use([kept.memory for kept in self.kept.values()], self.method_state or {})
        return use if self.average is None else use | {"average_bytes": weights_size(self.model)}

    def state(self) -> dict[str, Any]:
        """Everything learned so far, as tensors by name."""
        kept = {str(index): kept.memory for index, kept in self.kept.items()}
        state = {"model": dict(self.model.state_dict()), "kept": kept, "carried": self.method_state or {}}
        return state if self.average is None else state | {"average": dict(self.average.state_dict())}


def as_seen(memory: Memory, view: View) -> Memory:
    """What a run keeps of a task, with its samples as the network sees them."""
    return memory | {"inputs": view.scale(memory["inputs"])} if "inputs" in memory else memory


def replayed_in(
    method: Method, method_state: Memory, task: Task, memory: Memory, plan: ReplayPlan | None, batch: int
) -> Replayed | None:
    """What is replayed beside a batch of a task, the same in all updates on it. `memory`: what is kept of the task."""
    if plan is None or plan.places.shape[1] == 0:
        return None
    device = method_state["inputs"].device
    places, weights = (torch.from_numpy(array[batch]).to(device) for array in (plan.places, plan.weights))
    new = (places - len(method_state["inputs"])).clamp_min(0)
    drawn = method.replayed(method_state, places, weights, task.moved(new), task.train.labels[new], memory["classes"])
    return drawn._replace(inputs=task.view.scale(drawn.inputs))


class ReferenceRuns:
    """Some of them, asked like `RunStack`."""

    def __init__(self, runs: Sequence[ReferenceRun]) -> None:
        self.runs, self.seeds = runs, [run.seed for run in runs]
        self.joint, self.answers_unseen = runs[0].method.joint, runs[0].method.answers_unseen
        self.compares_tasks = False

    def learn(self, tasks: Sequence[Task], on_step: OnStep = lambda _: None, between_steps: Any = lambda: None) -> None:
        for run, task in zip(self.runs, tasks, strict=True):
            if not run.diverged:
                run.learn(task, on_step, between_steps)

    def accuracy(self, tasks: Sequence[Task]) -> list[float]:
        pairs = zip(self.runs, tasks, strict=True)
        return [math.nan if run.diverged else run.accuracy(task) for run, task in pairs]

    def scores(self, tasks: Sequence[Task]) -> list[Tensor]:
        return [run.scores(task).cpu() for run, task in zip(self.runs, tasks, strict=True)]

    @property
    def diverged(self) -> list[bool]:
        return [run.diverged for run in self.runs]

    def memory_use(self) -> list[dict[str, int]]:
        return [run.memory_use() for run in self.runs]

    def fingerprints(self) -> list[str]:
        return [digest(run.state()) for run in self.runs]
