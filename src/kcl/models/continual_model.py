"""A model that keeps learning: arrays in, labels out, tasks by name."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor, nn

from kcl.benchmarks.task import View
from kcl.core.devices import usable_device
from kcl.core.randomness import numpy_generator
from kcl.core.settings import nearest
from kcl.errors import KclError
from kcl.methods.kcl_settings import KclSettings
from kcl.models import defaults, scaling
from kcl.models.calibration import held_out_notes
from kcl.models.coreset_heads import CoresetHeads
from kcl.models.defaults import HEADS
from kcl.models.inference import name_or_module, start_run
from kcl.models.inputs import Label, as_tensor, checked, column_names, labelled, weighted
from kcl.models.learned_model import LearnedModel
from kcl.models.lessons import LearnedTask, LessonLearning, Samples, hold_out, samples_by_class
from kcl.models.streaming_heads import StreamingHeads, StreamingSettings, chosen_features
from kcl.models.unlearning import Receipt
from kcl.training.step_progress import OnStep


class ContinualModel(LearnedModel):
    """A model for use in programs: `learn` named tasks at any time, `predict` with or without a name.

    Any number of threads may predict while one thread teaches: they see the model from before the lesson until it ends.

    Parameters
    ----------
    seed : int
        Fixes all randomness.
    backbone : str or torch.nn.Module, optional
        A name (`kcl list backbones`), or your own module from n inputs to (n, d) features, which is copied.
    device : str or torch.device
        Where the model computes; "auto": on a GPU if there is one.
    standardise : bool, optional
        Whether rows of numbers are scaled by their spread in the first lesson. By default they are, unless the backbone
        is your own module or `unit_length` is set.
    held_out_share : float in 0 … 0.5
        Share of each lesson's samples that is not learned but tests the model.
    head : "auto", "streaming" or "coreset"
        The kind of model.
    landmarks : (m, d), optional
        Inputs for `features="nystroem"`.
    frequencies : (D, d), optional
        For `features="vrf"`, as `kcl.posterior_frequencies` draws them.
    **settings
        Settings of the head: `kcl list settings` with coresets, `kcl list streaming-settings` otherwise. Those left out
        are chosen by the first samples.
    """

    def __init__(
        self,
        seed: int = 0,
        backbone: nn.Module | str | None = None,
        device: str | torch.device = "cpu",
        standardise: bool | None = None,
        held_out_share: float = 0.0,
        head: str = "auto",
        landmarks: Any = None,
        frequencies: Any = None,
        **settings: Any,
    ) -> None:
        if not 0.0 <= held_out_share <= 0.5:
            raise KclError(f"held_out_share must lie in 0 … 0.5, not {held_out_share}")
        if head not in HEADS:
            raise KclError(f"unknown head {head!r}; {nearest(head, list(HEADS))}")
        named, backbone = name_or_module(backbone)
        settings |= named
        self.undecided = head == "auto" and not settings and backbone is None
        """Whether head and settings are still to be chosen, from the first samples."""
        self.head = "coreset" if head == "auto" else head
        self.streaming = StreamingSettings().replace(**(settings if head == "streaming" else {}))
        self.settings = KclSettings().replace(**({} if head == "streaming" else settings))
        self.module, self.landmarks, self.frequencies, self.given = backbone, landmarks, frequencies, settings
        self.seed, self.device = seed, usable_device(device)
        self.held_out_share, self.standardise = held_out_share, standardise
        self._heads, self.input_shape, self.dtype, self.columns, self.history = None, None, torch.float32, (), []

    # Beginning

    def begin(self, view: View) -> None:
        """Create the untrained network, once the shape of the inputs is known."""
        method, shape = LessonLearning(self.settings, 0), self.input_shape or ()
        self._heads = CoresetHeads(start_run(method, shape, self.module, self.seed, self.device), view, {})

    def blank_copy(self) -> Self:
        """A model that has learned nothing, with this one's features, scaling and settings: where models that are to be
        merged begin.
        """
        model = self.as_it_is()
        model._heads, model.history = self._streaming().blank(), []
        return model

    def _choose(self, x: Tensor) -> None:
        """Choose head, settings and scaling from the first samples, where they were left open, and begin."""
        rows = x.ndim == 2 and x.dtype != torch.uint8
        if self.undecided and defaults.streams(x.shape[1:], rows):
            self.head = "streaming"
        elif self.head == "coreset" and self.module is None:
            self.settings = defaults.coreset_settings(x.shape[1:], rows, self.given)
        if self.standardise is None:
            by_length = self.head == "streaming" and self.streaming.unit_length
            self.standardise = rows and self.module is None and not by_length
        view, self.input_shape, self.dtype = View(), tuple(x.shape[1:]), x.dtype
        if self.standardise:
            if not rows:
                kind = f"inputs of shape {tuple(x.shape)} and type {x.dtype}"
                raise KclError(f"standardise needs rows of numbers, not {kind}")
            defaults.warn_of_scaling(x)
            view = scaling.measured(x, self._by_root_of_columns())
        if self.head == "coreset":
            self.begin(view)
            return
        given = {}
        if self.frequencies is not None:
            frequencies = as_tensor(self.frequencies).double()
            given["frequencies"] = checked(frequencies, frequencies.shape[1:])
        if self.landmarks is not None:
            given["landmarks"] = view.scale(checked(as_tensor(self.landmarks), self.input_shape))
        features = chosen_features(self.streaming, view.scale(x), self.seed, given)
        self._heads = StreamingHeads(self.streaming, features, view, self.device, self.numbers)

    def _by_root_of_columns(self) -> bool:
        """Without a backbone and without normalisation, the width of a coreset's kernel is fixed, so that distances
        must not grow with the number of columns.
        """
        settings = self.settings
        return self.head == "coreset" and settings.backbone == "identity" and settings.feature_norm == "none"

    # Learning

    def learn(
        self,
        inputs: Any,
        labels: Any = None,
        task: str | None = None,
        on_step: OnStep = lambda _: None,
        classes: Sequence[Label] = (),
        sample_weight: Any = None,
    ) -> None:
        """Learn a new task, or more samples and new classes of an old one.

        If anything fails, the model is left as it was before the lesson.

        Parameters
        ----------
        inputs : (n, d) or (n, channels, height, width)
            n samples; or a torch dataset or loader of pairs, which brings its labels.
        labels : (n,) of text or of numbers
            Their classes.
        task : str, optional
            The task's name; by default the next unused of "task 0", "task 1", …
        on_step : function, optional
            Called after every training step, with its number and loss.
        classes : sequence of labels
            Classes of the task that may not have samples yet.
        sample_weight : (n,), optional
            A weight of zero leaves a sample out.
        """
        unused = (f"task {number}" for number in itertools.count(len(self.tasks)))
        name = next(new for new in unused if new not in self.tasks) if task is None else str(task)
        if not name.strip():
            raise KclError("a task needs a name with at least one visible character")
        names, (x, y) = column_names(inputs), self._labelled(inputs, labels)
        x, y, weights = weighted(x, y, sample_weight)
        with self._changed() as model:
            if model._heads is None:
                model._choose(checked(x, x.shape[1:], names))
                model.columns = names or model.columns
            all_classes = model._classes(name, y, classes)
            samples = Samples(name, model._as_stored(x, names), model._targets(name, y, all_classes), weights)
            model._learn(samples, all_classes, on_step)

    def _learn(self, samples: Samples, classes: tuple[Label, ...], on_step: OnStep) -> None:
        name, count, heads = samples.task, len(samples.targets), self.heads
        number = 1 + max((task.lesson for task in self.tasks.values()), default=-1)
        seen = self.tasks[name].seen if name in self.tasks else ()
        counts = itertools.zip_longest(seen, samples_by_class(samples.targets, len(classes)), fillvalue=0)
        task, rng = LearnedTask(number, classes, tuple(map(sum, counts))), numpy_generator(self.seed, "lesson", number)
        streaming = isinstance(heads, StreamingHeads)
        share = 0.0 if streaming and samples.weights is not None else self.held_out_share
        samples, held = hold_out(samples, share, rng)
        notes = heads.learn(samples, task, rng, on_step)
        if held is not None:
            logits = heads.logits(self.view.scale(held.inputs.to(heads.device)), name)
            notes |= held_out_notes(logits.cpu(), held.targets)
            if streaming:  # nothing is lost to the test
                heads.learn(held, task, rng, on_step)
        self.history.append({"task": name, "samples": count, "classes": len(classes)} | notes)
        defaults.warn(name, notes, task, not streaming, count)

    # What a model of numbers does in another way

    numbers = False
    """Whether targets are numbers instead of classes."""
    _labelled = staticmethod(labelled)

    def _classes(self, name: str, y: np.ndarray, announced: Sequence[Label]) -> tuple[Label, ...]:
        """Those of a task when it has learned these samples."""
        old = self.tasks[name].labels if name in self.tasks else ()
        new = {*y.tolist(), *announced}
        if len({isinstance(label, str) for label in (*old, *new)}) > 1:
            raise KclError(f"the labels of task {name!r} mix text and numbers: use one or the other")
        return old + tuple(sorted(new - set(old)))

    def _targets(self, name: str, y: np.ndarray, classes: tuple[Label, ...]) -> Tensor:
        """The position of each label among the classes of the task."""
        positions = {label: position for position, label in enumerate(classes)}
        if unknown := [label for label in y.tolist() if label not in positions]:
            raise KclError(f"task {name!r} never learned class {unknown[0]!r}, so none of its samples can be forgotten")
        return torch.tensor([positions[label] for label in y.tolist()])

    # Forgetting

    def forget(
        self,
        task: str | None = None,
        classes: Sequence[Label] | None = None,
        samples: tuple[Any, Any] | None = None,
        sample_weight: Any = None,
    ) -> Receipt:
        """Forget a task, some of its classes, or samples that are handed in again: afterwards the model equals one that
        never learned them, up to rounding. For streaming heads only.

        What remains of the data: the scaling and the width of the kernel, if they were measured on the first lesson.

        Parameters
        ----------
        task : str, optional
            Its name; needed if there are several tasks.
        classes : sequence of labels, optional
            Forget these classes of the task only (`keep="class"`).
        samples : pair of inputs and labels, optional
            Forget these samples of the task only, as they were learned.
        sample_weight : (n,), optional
            The weights that the samples were learned with.
        """
        if task is None and len(self.tasks) != 1:
            raise KclError("name the task that is to be forgotten, or that the classes or samples belong to")
        name = self._known(task) or next(iter(self.tasks))
        if classes is not None and samples is not None:
            raise KclError("give classes or samples, not both")
        if classes is not None and not len(classes):
            raise KclError("name at least one class to forget, or none to forget the whole task")
        given = None
        if samples is not None:
            names, (x, y) = column_names(samples[0]), self._labelled(*samples)
            x, y, weights = weighted(x, y, sample_weight)
            targets = self._targets(name, y, self.tasks[name].labels)
            given = Samples(name, self._as_stored(x, names), targets, weights)
        with self._changed() as model:
            receipt = model.heads.forget(name, classes, given)
            if name not in model.tasks:
                model.history = [lesson for lesson in model.history if lesson["task"] != name]
            else:
                left = len(model.tasks[name].labels)
                model.history.append({"task": name, "samples": -receipt.samples, "classes": left})
        return receipt

    @contextmanager
    def _changed(self) -> Iterator[ContinualModel]:
        """A copy to be changed, whose attributes become this model's at the end, unless there was an error."""
        before, model = self.__dict__, self.as_it_is()
        model._heads, model.history = None if model._heads is None else model._heads.fork(), list(model.history)
        yield model
        if self.__dict__ is not before:
            raise KclError("the model was taught by two threads at once, and only the first lesson is kept: take turns")
        self.__dict__ = model.__dict__


def to_be_kept(model: Any) -> ContinualModel:
    """A model that is to be saved or exported, in its present state; anything else is refused."""
    if not isinstance(model, ContinualModel):
        advice = "call its as_model() first" if hasattr(model, "as_model") else "pass a ContinualModel"
        raise KclError(f"{type(model).__name__} is not a model that can be saved or exported: {advice}")
    return model.as_it_is()
