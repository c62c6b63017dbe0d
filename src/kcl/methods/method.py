"""What a continual-learning method is: how one run learns from a batch, what it keeps, how it answers.

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
from kcl.core.shapes import Bool, Float, Int
from kcl.errors import KclError
from kcl.functional.noise import Noise
from kcl.methods import views
from kcl.nets.backbone import Backbone
from kcl.nets.flat import matrix_names

Memory = dict[str, Tensor]
"""What is kept, of one task or over all of them: tensors only, so that it can be stacked over runs and saved.

Samples are kept under "inputs", as stored (bytes where the data are bytes); `losses` and `classifier` are handed
them as the network sees them.
"""


class Learnable(NamedTuple):
    """A task as a method wants it: the rows to train on, and what is kept of the task from its beginning."""

    positions: np.ndarray
    memory: Memory


class Plan(NamedTuple):
    """Which samples the steps of a task recall and which are carried on after it, fixed before the first step.

    This depends on positions and luck, never on the model. A place below the number of slots carried is a slot as it
    was when the task began; slots + p is the task's training sample p.
    """

    places: np.ndarray
    """steps × m. No sample is recalled where m is 0."""
    weights: np.ndarray
    """steps × m: one, or zero where too few samples were there to recall and a place only fills the shape."""
    kept: np.ndarray
    """The place of what each slot holds after the task, −1 for nothing."""


class Recalled(NamedTuple):
    """The samples one step recalls."""

    inputs: Float[Tensor, "m ..."]
    classes: Int[Tensor, " m"]
    """The place of each sample's class among all classes of the stream."""
    allowed: Bool[Tensor, "m c"]
    """The classes of each sample's own task, among which it is told apart."""
    weights: Float[Tensor, " m"]


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
    steers: ClassVar[bool] = False
    """Whether SGD follows `direction` in place of the gradient of the loss."""
    keeps_coresets: ClassVar[bool] = False
    """Whether samples of each task are kept beside it, with a λ and a scale of its own."""
    joint: ClassVar[bool] = False
    """Whether all tasks are learned at once, as one."""

    def __init__(self, settings: Settings, class_count: int, places: int | None = None) -> None:
        """`class_count`: classes of the stream, each once; `places`: each as often as a task has it, for methods that
        share a memory of fixed size out between all tasks.
        """
        if type(settings) is not self.settings_type:
            raise KclError(f"{self.name} takes {self.settings_type.__name__}, not {type(settings).__name__}")
        self.settings = settings
        self.class_count = class_count
        self.places = places

    @property
    def outputs(self) -> int:
        """Labels that the network tells apart: the classes of the stream, or (class, rotation) pairs."""
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

    # What is carried from task to task

    def carry(self, model: Any, task: Task) -> Memory:  # noqa: ARG002
        """What is carried before the first task, which is `task`; from then on its shapes stay as they are."""
        return {}

    def plan(
        self,
        carried: Memory,  # noqa: ARG002
        task: Task,  # noqa: ARG002
        orders: Sequence[np.ndarray],  # noqa: ARG002
        sizes: Sequence[int],  # noqa: ARG002
        rng: np.random.Generator,  # noqa: ARG002
    ) -> Plan | None:
        """What is recalled in a task whose epochs visit its samples in these orders, in batches of these sizes."""
        return None

    def consolidate(
        self,
        model: Any,  # noqa: ARG002
        carried: Memory,
        task: Task,  # noqa: ARG002
        plan: Plan | None,  # noqa: ARG002
        rng: np.random.Generator,  # noqa: ARG002
    ) -> Memory:
        """What is carried on after the last batch of a task."""
        return carried

    # Learning a task

    @property
    def trained(self) -> tuple[str, ...]:
        """What is kept of a task, by name, that follows SGD beside the parameters while the task is learned. Not where
        `steers`.
        """
        return ()

    @abstractmethod
    def begin_task(self, model: Any, task: Task, rng: np.random.Generator) -> Learnable:
        """Called before the first batch of a task."""

    @abstractmethod
    def loss(
        self,
        model: Any,
        memory: Memory,
        inputs: Float[Tensor, "n ..."],
        labels: Int[Tensor, " n"],
        noise: Noise,
    ) -> Float[Tensor, ""]:
        """What a training step minimises, where nothing is recalled."""

    def losses(
        self,
        model: Any,
        memory: Memory,
        inputs: Float[Tensor, "n ..."],
        labels: Int[Tensor, " n"],
        recalled: Recalled | None,  # noqa: ARG002
        noise: Noise,
    ) -> tuple[Float[Tensor, ""], ...]:
        """The losses whose gradients a step needs. The first is the one that is told, and followed unless `steers`."""
        return (self.loss(model, memory, inputs, labels, noise),)

    def observe(
        self,
        model: Any,
        memory: Memory,
        inputs: Float[Tensor, "n ..."],
        labels: Int[Tensor, " n"],
        recalled: Recalled | None,
        noise: Noise,
    ) -> tuple[Float[Tensor, ""], ...]:
        """`losses` of a step over samples as the settings show them (`methods.views`)."""
        turns = views.rotations(self.settings)
        if (augmentation := self.settings.augmentation) != "none":
            inputs = views.varied(inputs, augmentation, noise)
            if "inputs" in memory:
                memory = memory | {"inputs": views.varied(memory["inputs"], augmentation, noise)}
            if recalled is not None:
                recalled = recalled._replace(inputs=views.varied(recalled.inputs, augmentation, noise))
        memory, recalled = views.shown_memory(memory, turns), recalled and views.shown_recalled(recalled, turns)
        inputs, labels = views.copies(inputs, turns), views.turned_labels(labels, turns)
        return self.losses(model, memory, inputs, labels, recalled, noise)

    def direction(
        self,
        weights: Float[Tensor, " p"],  # noqa: ARG002
        gradients: Float[Tensor, "l p"],
        carried: Memory,  # noqa: ARG002
    ) -> tuple[Float[Tensor, " p"], Memory]:
        """Where `steers`: what SGD follows, from the gradients of the losses, and what changes of what is carried.

        Parameters lie as in `nets.flat.Layout`.
        """
        return gradients[0], {}

    def end_task(self, model: Any, memory: Memory) -> Memory:  # noqa: ARG002
        """What is kept of a task after its last batch."""
        return memory

    # Answering

    def unseen_memory(self, task: Task) -> Memory:
        """What stands in for a task's memory before the task was learned, where `answers_unseen`."""
        return {"classes": torch.tensor(task.classes)}

    @property
    def shares(self) -> bool:
        """Whether the classifiers of all tasks have something `in_common`, which changes with the model's weights."""
        return False

    def contribution(self, model: Any, memory: Memory) -> Tensor:  # noqa: ARG002
        """Of a task, where `shares`: what is summed over tasks."""
        return torch.zeros(())

    def common(self, total: Float[Tensor, "*s ..."]) -> Memory:  # noqa: ARG002
        """Where `shares`: what `prepare` finds in the memory of every task, from that sum; of one run or of several."""
        return {}

    def in_common(self, model: Any, memories: Iterable[Memory]) -> Memory:
        """The same from what is kept of all tasks."""
        parts = [self.contribution(model, self.show(memory)) for memory in memories] if self.shares else []
        return self.common(torch.stack(parts).sum(0)) if parts else {}

    def show(self, memory: Memory) -> Memory:
        """What is kept of a task, its samples as the settings show them at test (`methods.views`)."""
        return views.shown_memory(memory, views.rotations(self.settings), views.mirrors(self.settings))

    def answer(self, model: Any, classifier: Memory, inputs: Float[Tensor, "n ..."]) -> Float[Tensor, "n c"]:
        """Scores of a task's classes, from `logits` of the copies in which the settings show a query."""
        turns, mirrored = views.rotations(self.settings), views.mirrors(self.settings)
        return views.vote(self.logits(model, classifier, views.copies(inputs, turns, mirrored)), turns, mirrored)

    @abstractmethod
    def classifier(self, model: Any, memory: Memory, noise: Noise) -> Memory:
        """Everything about a task's answers that does not depend on the query, valid until the model changes. `memory`:
        as `show` gives it.
        """

    @abstractmethod
    def logits(self, model: Any, classifier: Memory, inputs: Float[Tensor, "n ..."]) -> Float[Tensor, "n c"]:
        """Scores of a task's labels: its classes, or (class, rotation) pairs."""

    def memory_use(self, memories: Sequence[Memory], carried: Memory) -> dict[str, int]:
        """Samples kept and the bytes everything kept takes: of every task, and what is carried over all of them."""
        everything = [*memories, carried]
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
