"""The interface of a continual-learning method: how one run learns from a batch, what it keeps, how it answers.

A method describes ONE run: no loop, no device, no logging, no randomness of its own. `training` does the rest.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from kcl.benchmarks.task import Task
from kcl.core.settings import Settings
from kcl.core.shapes import Bool, Float, Int, Shaped
from kcl.errors import KclError
from kcl.functional.noise import Noise
from kcl.methods import views
from kcl.nets.backbone import Backbone
from kcl.nets.flat import matrix_names

Memory = dict[str, Tensor]
"""What is kept of one task, or over all tasks: tensors by name, so that it can be stacked over runs and saved.

Samples are kept under "inputs", as stored (bytes where the data are bytes); `losses` and `classifier` receive them as
the network sees them.
"""

Orders = Sequence[np.ndarray]
"""For every epoch of a task, the positions of its training samples in the order in which they are visited."""


Places = Sequence[Sequence[int]]
"""For every task, the place of each of its classes among the classes of all tasks."""


class Learnable(NamedTuple):
    """A task as a method learns it: the training samples to use, and what is kept of the task from its beginning."""

    positions: np.ndarray
    memory: Memory


class ReplayPlan(NamedTuple):
    """Which samples the steps of a task replay and which are kept after it, decided before the first step.

    It depends on positions and on chance, never on the model. A place below the number of slots is a slot as it was
    when the task began; slots + p is the task's training sample p.
    """

    places: np.ndarray
    """steps × m. Nothing is replayed if m is 0."""
    weights: np.ndarray
    """steps × m: one, or zero where there were too few samples to replay and a place only fills the shape."""
    kept: np.ndarray
    """The place of the sample that each slot holds after the task; −1 for none."""


class Replayed(NamedTuple):
    """The samples that one step replays."""

    inputs: Float[Tensor, "m ..."]
    classes: Int[Tensor, " m"]
    """The place of each sample's class among all classes of the stream."""
    allowed: Bool[Tensor, "m c"]
    """The classes of each sample's own task, among which it is classified."""
    weights: Float[Tensor, " m"]
    beside: Memory
    """What else a method replays with the samples."""


class Batch(NamedTuple):
    """The samples of one step: those of the task, and those replayed with them."""

    inputs: Float[Tensor, "n ..."]
    labels: Int[Tensor, " n"]
    replayed: Replayed | None = None


class Method(ABC):
    name: ClassVar[str]
    summary: ClassVar[str]
    settings_type: ClassVar[type[Settings]] = Settings
    """The settings that the method has."""
    keeps: ClassVar[str]
    """What is kept between tasks, in a few words."""
    memory_setting: ClassVar[str | None] = None
    """The setting that says how many samples per class and task are kept, where any are."""
    answers_unseen: ClassVar[bool] = True
    """Whether a task can be tested before it was learned (needed for forward transfer)."""
    modifies_gradient: ClassVar[bool] = False
    """Whether the optimiser follows `direction` instead of the gradient of the loss."""
    keeps_coresets: ClassVar[bool] = False
    """Whether each task keeps samples, with its own λ and scale."""
    joint: ClassVar[bool] = False
    """Whether all tasks are learned together, as one."""
    trains: ClassVar[bool] = True
    """Whether tasks are trained on in steps. Otherwise `begin_task` learns them, and leaves no samples for steps."""

    def __init__(self, settings: Settings, class_count: int, places: int | None = None) -> None:
        """`class_count`: classes of the stream, each once; `places`: each as often as a task has it, for methods that
        share a memory of fixed size out between all tasks.
        """
        if type(settings) is not self.settings_type:
            raise KclError(f"{self.name} takes {self.settings_type.__name__}, not {type(settings).__name__}")
        self.settings, self.class_count, self.places = settings, class_count, places
        self.shows_views = bool(views.asked(settings))

    @property
    def outputs(self) -> int:
        """Labels that the network distinguishes: the classes of the stream, or (class, rotation) pairs."""
        return self.class_count * views.rotations(self.settings)

    def check(self, task: Task) -> None:
        """Refuse a task that this method cannot learn."""
        task.check()
        views.check_images(task.train.inputs.shape[1:], self.settings)

    def make(self, backbone: Backbone) -> nn.Module:
        """`build`, where the backbone can do what the settings ask of it."""
        matrices, stages = bool(matrix_names(backbone)), max(1, len(backbone.parts))
        check_abilities(self.settings, backbone.sees_images, backbone.gathers, matrices, stages)
        return self.build(backbone)

    @abstractmethod
    def build(self, backbone: Backbone) -> nn.Module:
        """The run's model. Called with PyTorch's generator seeded for the run."""

    # State over all tasks

    def initial_state(self, model: Any, task: Task) -> Memory:
        """The method's state before the first task, which is `task`. Its shapes never change afterwards."""
        return {}

    def plan(
        self, method_state: Memory, task: Task, orders: Orders, sizes: Sequence[int], rng: np.random.Generator
    ) -> ReplayPlan | None:
        """What is replayed in a task whose epochs visit its samples in these orders, in batches of these sizes."""
        return None

    def replayed(
        self,
        method_state: Memory,
        places: Int[Tensor, " m"],
        weights: Float[Tensor, " m"],
        task_inputs: Shaped[Tensor, "m ..."],
        task_labels: Int[Tensor, " m"],
        classes: Int[Tensor, " w"],
    ) -> Replayed:
        """With `plan`: the samples at `places`, before scaling: slots of the memory, or samples of the current task.
        `task_inputs` and `task_labels` are those of the current task's training samples, and ignored where a place is a
        slot; `classes` are the current task's.
        """
        raise NotImplementedError

    def consolidate(
        self, model: Any, method_state: Memory, task: Task, plan: ReplayPlan | None, rng: np.random.Generator
    ) -> Memory:
        """The method's state after the last batch of a task."""
        return method_state

    # Learning a task

    @property
    def trained_state(self) -> tuple[str, ...]:
        """Names of task state trained by SGD together with the parameters. None with `modifies_gradient`."""
        return ()

    @abstractmethod
    def begin_task(self, model: Any, task: Task, rng: np.random.Generator) -> Learnable:
        """Called before the first batch of a task."""

    @abstractmethod
    def loss(self, model: Any, memory: Memory, batch: Batch, noise: Noise) -> Float[Tensor, ""]:
        """What a training step minimises if nothing is replayed."""

    def losses(self, model: Any, memory: Memory, batch: Batch, noise: Noise) -> tuple[Float[Tensor, ""], ...]:
        """The losses whose gradients a step needs. The first is reported, and followed unless `modifies_gradient`."""
        return (self.loss(model, memory, batch, noise),)

    def observe(self, model: Any, memory: Memory, batch: Batch, noise: Noise) -> tuple[Float[Tensor, ""], ...]:
        """`losses` of a step over samples as the settings show them (`methods.views`)."""
        if self.shows_views:
            memory, batch = views.shown_in_training(memory, batch, self.settings, noise)
        return self.losses(model, memory, batch, noise)

    def direction(
        self, weights: Float[Tensor, " p"], gradients: Float[Tensor, "l p"], method_state: Memory
    ) -> tuple[Float[Tensor, " p"], Memory]:
        """With `modifies_gradient`: the direction to follow, from the gradients of the losses, and what changes in the
        state. Parameters lie as in `nets.flat.Layout`.
        """
        return gradients[0], {}

    def end_task(self, model: Any, memory: Memory) -> Memory:
        """What is kept of a task after its last batch."""
        return memory

    def review(self, model: Any, memory: Memory, task: Task) -> Memory:
        """The same memory, after a look at all samples of the task with the network that will answer. Only settings
        whose runs share no training with others (`as_trained`) may depend on how that network is averaged.
        """
        return memory

    # Answering

    def unseen_memory(self, task: Task) -> Memory:
        """With `answers_unseen`: the memory of a task that was not learned yet."""
        return {"classes": torch.tensor(task.classes)}

    @property
    def shares(self) -> bool:
        """Whether the classifiers of all tasks have something `in_common`, which changes with the model's weights."""
        return False

    def contribution(self, model: Any, memory: Memory) -> Tensor:
        """With `shares`: the part of one task, to be summed over tasks."""
        return torch.zeros(())

    def common(self, total: Float[Tensor, "*s ..."]) -> Memory:
        """With `shares`: what is added to the memory of every task at test, from that sum; of one run or of several."""
        return {}

    def in_common(self, model: Any, memories: Iterable[Memory]) -> Memory:
        """The same from what is kept of all tasks."""
        parts = [self.contribution(model, self.show(memory)) for memory in memories] if self.shares else []
        return self.common(torch.stack(parts).sum(0)) if parts else {}

    def show(self, memory: Memory) -> Memory:
        """What is kept of a task, its samples as the settings show them at test (`methods.views`)."""
        if not self.shows_views:
            return memory
        return views.shown_memory(memory, views.rotations(self.settings), views.mirrors(self.settings))

    def answer(
        self, model: Any, classifier: Memory, inputs: Float[Tensor, "n ..."], of_all: bool = False
    ) -> Float[Tensor, "n c"]:
        """Scores of a task's classes, from `logits` of the copies in which the settings show a query. `of_all`: of the
        classes of all tasks, from `logits_of_all`.
        """
        turns, mirrored = views.rotations(self.settings), views.mirrors(self.settings)
        logits = self.logits_of_all if of_all else self.logits
        return views.vote(logits(model, classifier, views.copies(inputs, turns, mirrored)), turns, mirrored)

    @abstractmethod
    def classifier(self, model: Any, memory: Memory, noise: Noise) -> Memory:
        """Everything about a task's answers that does not depend on the query, valid until the model changes. `memory`:
        as `show` gives it.
        """

    @abstractmethod
    def logits(self, model: Any, classifier: Memory, inputs: Float[Tensor, "n ..."]) -> Float[Tensor, "n c"]:
        """Scores of a task's labels: its classes, or (class, rotation) pairs."""

    # Answering without a task

    def united(self, memories: Sequence[Memory], places: Places) -> Memory:
        """What is kept of several tasks as if they were one, whose classes are those of all of them."""
        raise KclError(f"{self.name} needs to know the task of a sample: use --scenario task")

    def classifier_of_all(self, model: Any, memory: Memory, rng: np.random.Generator) -> Memory:
        """Everything about answers over all classes that does not depend on the query, valid until the model changes.
        `memory`: as `show` gives it of `united`.
        """
        return memory

    def logits_of_all(self, model: Any, classifier: Memory, inputs: Float[Tensor, "n ..."]) -> Float[Tensor, "n c"]:
        """Scores of the labels of all tasks."""
        return self.logits(model, classifier, inputs)

    def memory_use(self, memories: Sequence[Memory], method_state: Memory) -> dict[str, int]:
        """Samples kept, and the bytes of everything kept: of every task, and of the state over all tasks."""
        everything = [*memories, method_state]
        return {
            "samples": sum(len(memory["inputs"]) for memory in everything if "inputs" in memory),
            "bytes": sum(tensor.numel() * tensor.element_size() for memory in everything for tensor in memory.values()),
        }


def check_abilities(settings: Settings, sees_images: bool, gathers: bool, has_matrices: bool, stages: int = 1) -> None:
    """Refuse settings that ask of a backbone what it cannot do."""
    if views.asked(settings) and not sees_images:
        raise KclError(
            f"{views.asked(settings)}: for a backbone that sees images (cifar-resnet, miniimagenet-resnet or a module "
            "of yours), to which a turned or mirrored image is one"
        )
    if settings.needs_batch_norm and not gathers:
        raise KclError("batch_norm=coreset needs a backbone with BatchNorm: cifar-resnet or miniimagenet-resnet")
    if settings.optimizer == "muon" and not has_matrices:
        raise KclError("optimizer=muon needs a backbone with matrices to train: this one has none")
    if settings.feature_stages > stages:
        raise KclError(
            f"feature_stages={settings.feature_stages} needs a backbone whose stages give features: cifar-resnet or "
            "miniimagenet-resnet"
        )
