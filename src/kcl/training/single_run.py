"""One run: a model that learns the tasks of a stream in turn and answers for all of them."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from kcl.benchmarks.task import Examples, Task, View
from kcl.core.randomness import check_seed, derive, numpy_generator
from kcl.core.settings import Settings
from kcl.core.shapes import Float, Int, Shaped
from kcl.errors import KclError
from kcl.methods.episodic import recall
from kcl.methods.method import Memory, Method, Plan, Recalled
from kcl.methods.views import copies_at_test
from kcl.nets.backbone import Backbone
from kcl.nets.flat import Layout
from kcl.ops.torch_private import BatchNormBase
from kcl.training.draws import RunNoise
from kcl.training.optimizers import optimizer_of
from kcl.training.weight_average import Reach, WeightAverage, reach, weights_size

EVALUATION_BATCH = 2048


class Step(NamedTuple):
    """Progress within a task: `step` of `steps` done, with the loss of that step."""

    step: int
    steps: int
    loss: float


OnStep = Callable[[Step], None]
BetweenSteps = Callable[[], None]
"""Called after every step, when the state of a run is whole: it may be saved, and the training may be ended."""


class Kept(NamedTuple):
    """What the run keeps of a learned task."""

    memory: Memory
    classes: tuple[int, ...]
    view: View


@dataclass
class Midway:
    """A task that is being learned: what must be known beside the weights to go on after `step` steps."""

    noise: RunNoise
    optimizer: torch.optim.Optimizer
    parameters: list[nn.Parameter]
    """All that the optimiser moves."""
    trained: dict[str, nn.Parameter]
    """Those that are no parameters of the model but kept of the task."""
    momentum: float
    step: int = 0


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


class Run:
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
        check_seed(seed)
        self.method = method
        self.seed = seed
        self.device = check_device(device)
        self.kept: dict[int, Kept] = {}
        self.carried: Memory | None = None
        self.diverged = False
        self.midway: Midway | None = None
        self.go_on: Callable[[Midway], None] | None = None
        """Where the run was in the midst of a task when it was saved: puts it back there, once the task is begun."""
        self._version = 0
        self._stored: dict[int, tuple[Tensor, Tensor]] = {}
        self.model = build_model(method, make_backbone, seed).to(self.device)
        own = variants or [method]
        self.averages = {far: WeightAverage(self.model, far) for far in reaches(own)}
        self.variants = [Variant(one, self.averages.get(reach(one.settings))) for one in own]

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
                raise KclError(f"task {part.index} was learned before; a stream shows each task once")
        settings = self.method.settings
        positions, memory = self.method.begin_task(self.model, task, numpy_generator(self.seed, "coreset", task.index))
        memory = on(self.device, memory)
        here = task if self.device.type == "cpu" else task.to(self.device, self._here(task.train).inputs)
        working = seen(memory, here.view)
        trained = {name: nn.Parameter(working[name].clone()) for name in self.method.trained}
        working |= trained
        if self.carried is None:
            self.carried = on(self.device, self.method.carry(self.model, task))
        orders = [batch_order(self.seed, task.index, epoch, positions) for epoch in range(settings.epochs)]
        sizes = batch_sizes(self.model, len(positions), settings.batch_size)
        plan = self.method.plan(self.carried, task, orders, sizes, numpy_generator(self.seed, "recalled", task.index))
        noise = RunNoise(self.device, self.seed, "training noise", task.index)
        parameters = [parameter for parameter in self.model.parameters() if parameter.requires_grad]
        parameters += trained.values()
        lr = learning_rate(settings, task.index)
        optimizer = optimizer_of(self.model, parameters, settings, lr, task.index)
        midway = self.midway = Midway(noise, optimizer, parameters, trained, settings.momentum)
        if self.go_on is not None:
            self.go_on(midway)
            self.go_on = None
        updates = settings.updates_per_batch
        steps = settings.epochs * len(sizes) * updates
        statistics = running_statistics(self.model)
        shown = (batch for batch in self._batches(orders, sizes) for _ in range(updates))
        left = itertools.islice(shown, midway.step, None)
        for step, batch in enumerate(left, start=midway.step + 1):
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
            midway.step = step
            on_step(Step(step, steps, value))
            between_steps()
        with torch.no_grad():
            memory |= {name: tensor.detach().clone() for name, tensor in trained.items()}
            ended = self.method.end_task(self.model, memory)
            rng = numpy_generator(self.seed, "consolidation", task.index)
            self.carried = self.method.consolidate(self.model, self.carried, here, plan, rng)
        for part in task.parts:
            own = ended if part is task else on(self.device, self.method.unseen_memory(part))
            self.kept[part.index] = Kept(own, part.classes, part.view.to(self.device))
        self.midway = None
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
        assert self.carried is not None  # noqa: S101 - carried from the first task on
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

    def _here(self, examples: Examples) -> Examples:
        """Examples on the run's device; a stored array is moved once, as bytes, and stays."""
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
        parts = stored.to(self.device).split(_evaluation_batch(way.method))
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
            raise KclError(f"task {index} was not learned yet, so it has no classifier; learned: {sorted(self.kept)}")
        return self.kept[index]

    @torch.no_grad()
    def accuracy(self, task: Task, variant: int = 0) -> float:
        """Percent of the task's test samples whose class has the highest score."""
        if len(task.test) == 0:
            raise KclError(f"task {task.index} has no test samples")
        way, test, view = self.variants[variant], self._here(task.test), task.view.to(self.device)
        classifier, model = self._classifier(task, way), self._answering(way)
        correct = torch.zeros((), dtype=torch.int64, device=self.device)
        size = _evaluation_batch(way.method)
        for rows, labels in zip(test.rows.split(size), test.labels.split(size), strict=True):
            scores = way.method.answer(model, classifier, view(test.inputs[rows]))
            correct += (answers(scores) == labels).sum()
        return 100.0 * correct.item() / len(test)

    @torch.no_grad()
    def _classifier(self, task: Task | int, way: Variant) -> Any:
        """The task's classifier, solved again only when the weights have changed since."""
        index = task if isinstance(task, int) else task.index
        found = way.classifiers.get(index)
        if found is not None and found[0] == self._version:
            return found[1]
        if index not in self.kept and isinstance(task, Task) and self.method.answers_unseen:
            memory = on(self.device, self.method.unseen_memory(task))
        else:
            kept = self._kept(task)
            memory = seen(kept.memory, kept.view) | self._common(way)
        noise = RunNoise(self.device, self.seed, "test noise", index)
        classifier = way.method.prepare(self._answering(way), memory, noise)
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


def reaches(variants: Sequence[Method]) -> list[Reach]:
    """Of the averages that the variants of a run answer with, each once."""
    found = dict.fromkeys(reach(method.settings) for method in variants)
    return [own for own in found if own.decay]


def _evaluation_batch(method: Method) -> int:
    """How many queries at once: fewer where each is shown several times."""
    return EVALUATION_BATCH // copies_at_test(method.settings)


def answers(scores: Float[Tensor, "*s n c"]) -> Int[Tensor, "*s n"]:
    """The class with the highest score; −1, which is no class, where scores are not finite: a kernel matrix that is not
    positive definite in single precision must not pass for an answer.
    """
    return torch.where(torch.isfinite(scores).all(-1), scores.argmax(-1), -1)


def build_model(method: Method, make_backbone: Callable[[], Backbone], seed: int) -> nn.Module:
    """A run's model with its initial weights, without touching PyTorch's global generator."""
    with torch.random.fork_rng(devices=[]):  # the initialisers draw from the global generator only
        torch.manual_seed(derive(seed, "initial weights"))
        return method.make(make_backbone())


def check_device(device: str | torch.device) -> torch.device:
    device = torch.device(device)
    if device.type == "cuda" and not torch.cuda.is_available():
        raise KclError(f"device {str(device)!r}: PyTorch finds no CUDA GPU here; use 'cpu'")
    return device


def running_statistics(model: nn.Module) -> list[Tensor]:
    """What a forward pass changes: BatchNorm's running averages."""
    norms = [module for module in model.modules() if isinstance(module, BatchNormBase)]
    return [buffer for norm in norms for buffer in norm.buffers()]


def batch_sizes(model: nn.Module, length: int, batch: int) -> list[int]:
    """An epoch's batches; the last may be smaller. Where samples of a pass mix it is not left with one sample,
    whose batch statistics would not exist: that sample joins the batch before it.
    """
    sizes = [batch] * (length // batch) + [length % batch] * (length % batch > 0)
    if sizes[-1] == 1 and getattr(model.get_submodule("backbone"), "mixes_samples", False):
        if len(sizes) == 1 or batch == 1:
            raise KclError("a backbone with BatchNorm needs batches of at least two samples to learn from")
        sizes[-2:] = [sizes[-2] + 1]
    return sizes


def learning_rate(settings: Settings, task_index: int) -> float:
    """η · decay^(t + 1), t from 0, but never below the floor: the first task is decayed already, as published."""
    return max(settings.lr * settings.lr_decay ** (task_index + 1), settings.lr_floor)


def batch_order(seed: int, task_index: int, epoch: int, positions: np.ndarray) -> np.ndarray:
    """The training positions in the order an epoch of a run visits them."""
    return numpy_generator(seed, "batch order", task_index, epoch).permutation(positions)


def seen(memory: Memory, view: View, runs: bool = False) -> Memory:
    """What is kept of a task, with its samples as the network sees them; `runs`: stacked over runs."""
    if "inputs" not in memory:
        return memory
    scale = torch.func.vmap(view.scale) if runs else view.scale
    return memory | {"inputs": scale(memory["inputs"])}


def on(device: torch.device, memory: Memory) -> Memory:
    return {name: tensor.to(device) for name, tensor in memory.items()}
