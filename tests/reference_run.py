"""One run in plain PyTorch, written without regard to speed: the reference that the engine is held against.

It shares with `kcl.training` only what is not in question: batch orders, batch sizes, learning rates, derived noise.
Forward pass, gradients, optimiser, averages and the handling of a loss that is not finite are its own.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from kcl.benchmarks.task import Task, View
from kcl.core.randomness import numpy_generator
from kcl.core.settings import Settings
from kcl.functional import orthogonal
from kcl.methods.episodic import recall
from kcl.methods.method import Memory, Method, Plan, Recalled
from kcl.nets.backbone import Backbone
from kcl.nets.flat import Layout, matrix_names
from kcl.training.batches import batch_order, batch_sizes
from kcl.training.cuda_graph import BetweenSteps, OnStep, Step
from kcl.training.draws import RunNoise
from kcl.training.evaluation import predicted
from kcl.training.optimizers import learning_rate
from kcl.training.stack import build_model, on_device
from kcl.training.state import running_statistics
from kcl.training.weight_average import AverageHorizon, horizon, horizons, weights_size


def seen(memory: Memory, view: View) -> Memory:
    """What a run keeps of a task, with its samples as the network sees them."""
    return memory | {"inputs": view.scale(memory["inputs"])} if "inputs" in memory else memory


class WeightAverage(nn.Module):
    """For one run: `model` holds the average."""

    updates: Tensor

    def __init__(self, model: nn.Module, reach: AverageHorizon) -> None:
        super().__init__()
        self.model, self.reach = copy.deepcopy(model).requires_grad_(False), reach
        device = next(model.parameters()).device
        self.register_buffer("updates", torch.zeros(1, dtype=torch.int64, device=device))
        self._count = 0

    @torch.no_grad()
    def update(self, model: nn.Module) -> None:
        weight = 1.0 - min(self.reach.decay, (1.0 + self._count) / (1.0 + self.reach.ramp + self._count))
        pairs = [*zip(self.model.parameters(), model.parameters(), strict=True)]
        for own, present in [*pairs, *zip(self.model.buffers(), model.buffers(), strict=True)]:
            if own.is_floating_point():
                own.lerp_(present, weight)
            else:
                own.copy_(present)
        self._count += 1
        self.updates.fill_(self._count)


class Muon(torch.optim.Optimizer):
    """For one run."""

    def __init__(
        self, model: nn.Module, lr: float, muon_lr: float, momentum: float, others: Iterable[nn.Parameter] = ()
    ) -> None:
        """`others`: what is trained and no parameter of the model."""
        names, parts = (
            {f"backbone.{name}" for name in matrix_names(model.get_submodule("backbone"))},
            dict[bool, list[nn.Parameter]]({True: [], False: []}),
        )
        for name, parameter in model.named_parameters():
            if parameter.requires_grad:
                parts[name in names].append(parameter)
        parts[False] += others
        groups = [
            {"params": parts[True], "matrices": True, "lr": muon_lr},
            {"params": parts[False], "matrices": False, "lr": lr},
        ]
        super().__init__([group for group in groups if group["params"]], {"momentum": momentum})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            momentum = group["momentum"]
            for parameter in group["params"]:
                gradient = parameter.grad
                if gradient is None:
                    continue
                velocity = gradient
                if momentum:
                    state = self.state[parameter]
                    if "momentum_buffer" not in state:
                        state["momentum_buffer"] = torch.zeros_like(parameter)
                    velocity = state["momentum_buffer"].mul_(momentum).add_(gradient)
                if group["matrices"]:
                    velocity = orthogonal.update((gradient + momentum * velocity).flatten(1)[None]).view_as(parameter)
                parameter.sub_(group["lr"] * velocity)


def optimizer_of(
    model: nn.Module, parameters: Iterable[nn.Parameter], settings: Settings, lr: float, task_index: int
) -> torch.optim.Optimizer:
    """A run's optimiser for a task."""
    if settings.optimizer == "muon":
        own = {id(parameter) for parameter in model.parameters()}
        others = [parameter for parameter in parameters if id(parameter) not in own]
        return Muon(model, lr, settings.muon_lr * settings.muon_lr_decay**task_index, settings.momentum, others)
    return torch.optim.SGD(parameters, lr=lr, momentum=settings.momentum, fused=True)


class Kept(NamedTuple):
    """What the run keeps of a learned task."""

    memory: Memory
    classes: tuple[int, ...]
    view: View


@dataclass
class Variant:
    """One way of testing a run."""

    method: Method
    average: WeightAverage | None
    """What it answers with in place of the last weights."""
    classifiers: dict[int, tuple[int, Any]] = field(default_factory=dict)
    """By task, with the version of the weights that each was solved at."""
    common: tuple[int, Memory] | None = None
    """What all of them have in common, likewise."""


class ReferenceRun:
    """A method, a seed and everything learned so far."""

    def __init__(
        self,
        method: Method,
        make_backbone: Callable[[], Backbone],
        seed: int,
        device: str | torch.device = "cpu",
        variants: Sequence[Method] = (),
    ) -> None:
        """`variants`: where the run is tested in several ways, the method of each; training never sees which."""
        self.method = method
        self.seed = seed
        self.device = torch.device(device)
        self.kept: dict[int, Kept] = {}
        self.carried: Memory | None = None
        self.diverged = False
        self._version = 0
        self._stored: dict[int, tuple[Tensor, Tensor]] = {}
        self.model = build_model(method, make_backbone, seed).to(self.device)
        own = variants or [method]
        self.averages = {far: WeightAverage(self.model, far) for far in horizons(own)}
        self.variants = [Variant(one, self.averages.get(horizon(one.settings))) for one in own]

    @property
    def average(self) -> WeightAverage | None:
        return self.variants[0].average

    @property
    def answering(self) -> nn.Module:
        """The model as it answers: with its last weights, or with their average."""
        return self._answering(self.variants[0])

    def _answering(self, variant: Variant) -> nn.Module:
        return self.model if variant.average is None else variant.average.model

    def learn(self, task: Task, on_step: OnStep = lambda _: None, between_steps: BetweenSteps = lambda: None) -> None:
        """One task: draw what is kept of it, then pass over the rest in batches, `epochs` times, with
        `updates_per_batch` updates on each.
        """
        self.method.check(task)
        for part in task.parts:
            if part.index in self.kept:
                raise ValueError(f"task {part.index} was learned before; a stream shows each task once")
        settings = self.method.settings
        positions, memory = self.method.begin_task(self.model, task, numpy_generator(self.seed, "coreset", task.index))
        memory = on_device(self.device, memory)
        here = task if self.device.type == "cpu" else task.to(self.device, self._on_device(task.train).inputs)
        working = seen(memory, here.view)
        trained = {name: nn.Parameter(working[name].clone()) for name in self.method.trained}
        working |= trained
        if self.carried is None:
            self.carried = on_device(self.device, self.method.carry(self.model, task))
        orders = [batch_order(self.seed, task.index, epoch, positions) for epoch in range(settings.epochs)]
        sizes = batch_sizes(self.model, len(positions), settings.batch_size)
        plan = self.method.plan(self.carried, task, orders, sizes, numpy_generator(self.seed, "recalled", task.index))
        noise = RunNoise(self.device, self.seed, "training noise", task.index)
        parameters = [parameter for parameter in self.model.parameters() if parameter.requires_grad]
        parameters += trained.values()
        lr = learning_rate(settings, task.index)
        optimizer = optimizer_of(self.model, parameters, settings, lr, task.index)
        updates = settings.updates_per_batch
        steps = settings.epochs * len(sizes) * updates
        statistics = running_statistics(self.model)
        shown = (batch for batch in self._batches(orders, sizes) for _ in range(updates))
        for step, batch in enumerate(shown, start=1):
            inputs = here.view.scale(here.moved(batch))
            before = [buffer.clone() for buffer in statistics]
            recalled = self._recalled(here, working, plan, (step - 1) // updates)
            losses = self.method.observe(self.model, working, inputs, here.train.labels[batch], recalled, noise)
            optimizer.zero_grad(set_to_none=True)
            changed = self._differentiate(losses)
            value = losses[0].item()
            if any(loss - loss != 0.0 for loss in (value, *(loss.item() for loss in losses[1:]))):
                self.diverged = True  # infinite or not a number: stop before the weights are spoiled
                for buffer, value_before in zip(statistics, before, strict=True):
                    buffer.copy_(value_before)
                break
            optimizer.step()
            for average in self.averages.values():
                average.update(self.model)
            self.carried |= changed
            self._version += 1
            on_step(Step(step, steps, value))
            between_steps()
        with torch.no_grad():
            memory |= {name: tensor.detach().clone() for name, tensor in trained.items()}
            ended = self.method.end_task(self.model, memory)
            rng = numpy_generator(self.seed, "consolidation", task.index)
            self.carried = self.method.consolidate(self.model, self.carried, here, plan, rng)
        for part in task.parts:
            own = ended if part is task else on_device(self.device, self.method.unseen_memory(part))
            self.kept[part.index] = Kept(own, part.classes, part.view.to(self.device))
        self._version += 1  # what classifiers have in common knows of this task now

    def _batches(self, orders: Sequence[np.ndarray], sizes: list[int]) -> Iterator[Int[Tensor, " n"]]:
        """The training positions in an order of the run's own, cut into batches; the last may be smaller."""
        for order in orders:
            yield from torch.from_numpy(order).to(self.device).split(sizes)

    def _recalled(self, task: Task, memory: Memory, plan: Plan | None, step: int) -> Recalled | None:
        """What is recalled beside batch number `step`, the same in all updates on it."""
        if plan is None or self.carried is None or plan.places.shape[1] == 0:
            return None
        places, weights = (torch.from_numpy(array[step]).to(self.device) for array in (plan.places, plan.weights))
        own = (places - len(self.carried["inputs"])).clamp_min(0)
        drawn = recall(self.carried, places, weights, task.moved(own), task.train.labels[own], memory["classes"])
        return drawn._replace(inputs=task.view.scale(drawn.inputs))

    def _differentiate(self, losses: Sequence[Tensor]) -> Memory:
        """Leave in every parameter's `grad` what SGD is to follow; what changes of what is carried."""
        if not self.method.steers:
            losses[0].backward()
            return {}
        assert self.carried is not None
        layout, named = Layout(self.model), dict(self.model.named_parameters())
        trained = {name: parameter for name, parameter in named.items() if parameter.requires_grad}
        flat = []
        for loss in losses:
            found = torch.autograd.grad(
                loss, list(trained.values()), retain_graph=True, allow_unused=True, materialize_grads=True
            )
            frozen = {name: torch.zeros_like(parameter) for name, parameter in named.items() if name not in trained}
            flat.append(layout.flatten(frozen | dict(zip(trained, found, strict=True))))
        with torch.no_grad():
            followed, changed = self.method.direction(layout.weights(self.model), torch.stack(flat), self.carried)
        for name, part in layout.split(followed).items():
            if name in trained:
                named[name].grad = part
        return changed

    def _on_device(self, examples: Any) -> Any:
        """Any on the run's device; a stored array is moved once, as bytes, and stays."""
        if self.device.type == "cpu":
            return examples
        key = id(examples.inputs)
        if key not in self._stored:  # the original is kept beside its copy, so that its id stays its own
            self._stored[key] = (examples.inputs, examples.inputs.to(self.device))
        return examples.to(self.device, self._stored[key][1])

    @torch.no_grad()
    def logits(self, stored: Shaped[Tensor, "n ..."], task: Task | int, variant: int = 0) -> Float[Tensor, "n c"]:
        """Scores of a learned task's classes for inputs as the stream stores them."""
        way = self.variants[variant]
        classifier, view, model = self._classifier(task, way), self._kept(task).view, self._answering(way)
        parts = stored.to(self.device).split(2048)
        return torch.cat([way.method.answer(model, classifier, view(part)) for part in parts])

    @property
    def version(self) -> int:
        """Another number whenever the weights have changed."""
        return self._version

    def renew(self) -> None:
        """The weights were changed from outside: no classifier solved before holds any longer."""
        self._version += 1

    def classes(self, task: Task | int) -> tuple[int, ...]:
        return self._kept(task).classes

    def _kept(self, task: Task | int) -> Kept:
        index = task if isinstance(task, int) else task.index
        if index not in self.kept:
            raise ValueError(f"task {index} was not learned yet, so it has no classifier; learned: {sorted(self.kept)}")
        return self.kept[index]

    @torch.no_grad()
    def accuracy(self, task: Task, variant: int = 0) -> float:
        """Percent of the task's test samples whose class has the highest score."""
        if len(task.test) == 0:
            raise ValueError(f"task {task.index} has no test samples")
        way, test, view = self.variants[variant], self._on_device(task.test), task.view.to(self.device)
        classifier, model = self._classifier(task, way), self._answering(way)
        correct = torch.zeros((), dtype=torch.int64, device=self.device)
        size = 2048
        for rows, labels in zip(test.rows.split(size), test.labels.split(size), strict=True):
            scores = way.method.answer(model, classifier, view(test.inputs[rows]))
            correct += (predicted(scores) == labels).sum()
        return 100.0 * correct.item() / len(test)

    @torch.no_grad()
    def _classifier(self, task: Task | int, way: Variant) -> Any:
        """The task's classifier, solved again only when the weights have changed since."""
        index = task if isinstance(task, int) else task.index
        found = way.classifiers.get(index)
        if found is not None and found[0] == self._version:
            return found[1]
        if index not in self.kept and isinstance(task, Task) and self.method.answers_unseen:
            memory = on_device(self.device, self.method.unseen_memory(task))
        else:
            kept = self._kept(task)
            memory = seen(kept.memory, kept.view) | self._common(way)
        noise = RunNoise(self.device, self.seed, "test noise", index)
        classifier = way.method.classifier(self._answering(way), way.method.show(memory), noise)
        way.classifiers[index] = (self._version, classifier)
        return classifier

    def _common(self, way: Variant) -> Memory:
        """What the classifiers of all tasks have in common."""
        if way.common is None or way.common[0] != self._version:
            memories = (seen(kept.memory, kept.view) for kept in self.kept.values())
            way.common = self._version, way.method.in_common(self._answering(way), memories)
        return way.common[1]

    def memory_use(self, variant: int = 0) -> dict[str, int]:
        """Samples kept over all tasks and the bytes everything kept takes; apart from these, of averaged weights."""
        use = self.method.memory_use([kept.memory for kept in self.kept.values()], self.carried or {})
        average = self.variants[variant].average
        return use if average is None else use | {"average_bytes": weights_size(average.model)}


class ReferenceRuns:
    """Some of them, asked like `RunStack`: everything is of every run, those that share a training one after another."""

    def __init__(self, runs: Sequence[ReferenceRun]) -> None:
        self.runs = runs
        self._each = [(run, variant) for run in runs for variant in range(len(run.variants))]
        self.seeds = [run.seed for run, _ in self._each]

    def learn(self, tasks: Sequence[Task], on_step: OnStep = lambda _: None) -> None:
        firsts = [0, *itertools.accumulate(len(run.variants) for run in self.runs)][:-1]
        for run, first in zip(self.runs, firsts, strict=True):
            if not run.diverged:
                run.learn(tasks[first], on_step)

    def accuracy(self, tasks: Sequence[Task]) -> list[float]:
        pairs = zip(self._each, tasks, strict=True)
        return [float("nan") if run.diverged else run.accuracy(task, variant) for (run, variant), task in pairs]

    def scores(self, tasks: Sequence[Task]) -> list[Tensor]:
        pairs = zip(self._each, tasks, strict=True)
        return [run.logits(task.test.inputs[task.test.rows], task, variant) for (run, variant), task in pairs]

    @property
    def diverged(self) -> list[bool]:
        return [run.diverged for run, _ in self._each]

    def memory_use(self) -> list[dict[str, int]]:
        return [run.memory_use(variant) for run, variant in self._each]
