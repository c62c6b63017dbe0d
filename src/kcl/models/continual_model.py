"""A model that keeps learning: arrays in, labels out, tasks by name."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from kcl.benchmarks.task import View
from kcl.core.settings import nearest
from kcl.errors import KclError
from kcl.methods.kcl_settings import KclSettings
from kcl.models import defaults, scaling
from kcl.models.coreset_heads import CoresetHeads
from kcl.models.defaults import HEADS
from kcl.models.inference import JOINT, NOTHING_LEARNED, Answerer, finite, name_or_module
from kcl.models.inputs import (
    Label,
    as_tensor,
    check_columns,
    checked,
    column_names,
    label_array,
    labelled,
    sample_weights,
)
from kcl.models.lessons import LearnedTask, Samples
from kcl.models.model_state import ModelState, StatePart
from kcl.models.streaming_heads import StreamingHeads, StreamingSettings, features_given
from kcl.models.unknowns import DEFAULT_RATE, DEFAULT_SCORE, Drift, KnownScores
from kcl.models.unlearning import Receipt
from kcl.training.stack import RunStack
from kcl.training.step_progress import OnStep


class Prediction(NamedTuple):
    """Predictions for n queries, as arrays."""

    label: np.ndarray
    """The class; None where the model abstains."""
    task: np.ndarray
    confidence: np.ndarray
    variance: np.ndarray
    task_margin: np.ndarray
    known: np.ndarray
    """The share of known queries that are less known (`reject_unknown`), else not a number."""


class ContinualModel:
    """A model for use in programs: `learn` named tasks at any time, `predict` with or without a name.

    `head` is one of `defaults.HEADS`. `backbone` is a name (`kcl list backbones`) or your own module, which is copied.
    `standardise` scales input features as `models.scaling` says, measured on the first lesson; by default it does so
    for rows of numbers where the model chooses its own settings. `held_out_share` of each lesson's samples tests the
    model. `landmarks`: inputs for `features="nystroem"`; `frequencies`: for `features="vrf"`. Every further keyword
    is a setting of the head.

    Any number of threads may predict while one thread teaches: they see the model from before the lesson until it ends.
    """

    open, head, settings = StatePart[bool](), StatePart[str](), StatePart[KclSettings]()
    standardise, view, dtype = StatePart[bool | None](), StatePart[View](), StatePart[torch.dtype]()
    tasks, history = StatePart[dict[str, LearnedTask]](), StatePart[list[dict[str, Any]]]()
    columns, input_shape = StatePart[tuple[str, ...]](), StatePart[tuple[int, ...] | None]()
    _heads = StatePart[CoresetHeads | StreamingHeads | None]()

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
        self.streaming = StreamingSettings().replace(**(settings if head == "streaming" else {}))
        self.state = ModelState(
            open=head == "auto" and not settings and backbone is None,
            head="coreset" if head == "auto" else head,
            settings=KclSettings().replace(**({} if head == "streaming" else settings)),
            standardise=standardise,
        )
        self.module, self.landmarks, self.frequencies = backbone, landmarks, frequencies
        self.seed, self.device, self.held_out_share = seed, device, held_out_share

    def __repr__(self) -> str:
        if self._heads is None:
            return "ContinualModel(nothing learned yet)"
        tasks = f"{len(self.tasks)} task{'' if len(self.tasks) == 1 else 's'}"
        return f"ContinualModel({tasks}, {len(self.labels)} classes; {self.describe()})"

    def describe(self) -> str:
        """What the model is made of, in one line."""
        if isinstance(self._heads, StreamingHeads):
            return self._heads.describe()
        backbone = self.settings.backbone if self.module is None else type(self.module).__name__
        return f"backbone {backbone}, kernel {self.settings.kernel}, {self.settings.coreset_size_per_class} per class"

    # State

    @property
    def heads(self) -> CoresetHeads | StreamingHeads:
        if self._heads is None:
            raise KclError(NOTHING_LEARNED)
        return self._heads

    @property
    def answerer(self) -> Answerer:
        if not isinstance(self.heads, CoresetHeads):
            raise KclError("this model keeps sums, not a network and coresets")
        return self.heads.answerer

    @property
    def stack(self) -> RunStack:
        return self.answerer.stack

    @property
    def labels(self) -> tuple[Label, ...]:
        """The classes of all tasks, each once, in the order of first appearance."""
        return tuple(dict.fromkeys(label for task in self.tasks.values() for label in task.labels))

    def begin(self, input_shape: Sequence[int], dtype: torch.dtype, view: View) -> None:
        """Create the untrained network, once the shape of the inputs is known."""
        heads = CoresetHeads.begin(self.settings, self.module, input_shape, self.seed, self.device)
        self.adopt(heads, input_shape, dtype, view)

    def adopt(
        self, heads: CoresetHeads | StreamingHeads, input_shape: Sequence[int], dtype: torch.dtype, view: View
    ) -> None:
        """Use these heads as the model's state."""
        self._heads, self.input_shape, self.dtype, self.view = heads, tuple(input_shape), dtype, view
        self.open = False

    def blank_copy(self) -> ContinualModel:
        """A model that has learned nothing, with this one's features, scaling and settings: where models that are to be
        merged begin.
        """
        heads = self._streaming()
        model = ContinualModel(
            self.seed, None, self.device, self.standardise, self.held_out_share, "streaming", **heads.settings.to_dict()
        )
        blank = StreamingHeads(heads.settings, heads.ridge.features, self.seed, heads.device)
        model.adopt(blank, self.input_shape or (), self.dtype, self.view)
        model.columns = self.columns
        return model

    def _streaming(self) -> StreamingHeads:
        if not isinstance(self.heads, StreamingHeads):
            raise KclError("this needs a streaming head (head='streaming'); the model has a network and coresets")
        return self.heads

    def _choose(self, x: Tensor) -> None:
        """Choose head, settings and scaling from the first samples, where they were left open, and begin."""
        rows = x.ndim == 2 and x.dtype != torch.uint8
        if self.open:
            if defaults.streams(x.shape[1:], rows):
                self.head = "streaming"
            else:
                self.settings = KclSettings().replace(**defaults.coreset_settings(x.shape[1:]))
        if self.standardise is None:
            self.standardise = self.head == "streaming" and rows and not self.streaming.unit_length
        view = View()
        if self.standardise:
            if not rows:
                kind = f"inputs of shape {tuple(x.shape)} and type {x.dtype}"
                raise KclError(f"standardise needs rows of numbers, not {kind}")
            defaults.warn_of_scaling(x)
            view = scaling.measured(x, self._by_root_of_columns())
        if self.head == "streaming":
            given = features_given(self.landmarks, self.frequencies, view, x.shape[1:])
            heads = StreamingHeads.begin(self.streaming, view.scale(x), self.seed, self.device, given)
            self.adopt(heads, x.shape[1:], x.dtype, view)
        else:
            self.begin(x.shape[1:], x.dtype, view)

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

        `inputs`: whatever `models.inputs` can read. A torch dataset or loader of pairs brings its labels. Columns with
        names are remembered, and are to come in the same order ever after. `classes` lists classes of the task that may
        not have samples yet. If anything fails, the model is left as it was before the lesson.
        """
        unused = (f"task {number}" for number in itertools.count(len(self.tasks)))
        name = next(new for new in unused if new not in self.tasks) if task is None else str(task)
        if not name.strip():
            raise KclError("a task needs a name with at least one visible character")
        x, sample_labels = labelled(inputs, labels)
        names, weights = column_names(inputs), sample_weights(sample_weight, len(x))
        if weights is not None:  # a sample of weight zero is as if it were not there
            kept = weights > 0
            sample_labels = [label for label, learned in zip(sample_labels, kept.tolist(), strict=True) if learned]
            x, weights = x[kept], weights[kept]
        with self._changed() as model:
            if model._heads is None:
                model._choose(checked(x, x.shape[1:], names))
                model.columns = names or model.columns
            model._learn(model._as_stored(x, names), sample_labels, name, on_step, classes, weights)

    def _learn(
        self,
        x: Tensor,
        sample_labels: list[Label],
        name: str,
        on_step: OnStep,
        announced: Sequence[Label],
        weights: Tensor | None,
    ) -> None:
        number = 1 + max((task.lesson for task in self.tasks.values()), default=-1)
        old = self.tasks.get(name, LearnedTask(-1, (), ()))
        if len({isinstance(label, str) for label in (*old.labels, *sample_labels, *announced)}) > 1:
            raise KclError(f"the labels of task {name!r} mix text and numbers: use one or the other")
        classes = old.labels + tuple(sorted({*sample_labels, *announced} - set(old.labels)))
        positions = {label: position for position, label in enumerate(classes)}
        y = torch.tensor([positions[label] for label in sample_labels])
        samples = Samples(name, number, x, y, classes, weights)
        self.tasks[name], notes = self.heads.learn(samples, old, self.view, self.held_out_share, on_step)
        self.history.append({"task": name, "samples": len(sample_labels), "classes": len(classes)} | notes)
        defaults.warn(name, notes, self.tasks[name], self.head == "coreset", len(sample_labels))

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

        The task may be left out where there is only one. What remains of the data: the scaling and the width of the
        kernel, if they were measured on the first lesson.
        """
        if task is None and len(self.tasks) != 1:
            raise KclError("name the task that is to be forgotten, or that the classes or samples belong to")
        name = next(iter(self.tasks)) if task is None else self._known(task)
        if classes is not None and samples is not None:
            raise KclError("give classes or samples, not both")
        given = None
        if samples is not None:
            x, labels = labelled(*samples)
            given = self._as_stored(x, column_names(samples[0])), labels, sample_weights(sample_weight, len(labels))
        with self._changed() as model:
            model.tasks, receipt = model.heads.forget(model.tasks, name, classes, given, model.view)
            if name not in model.tasks:
                model.history = [lesson for lesson in model.history if lesson["task"] != name]
            else:
                left = len(model.tasks[name].labels)
                model.history.append({"task": name, "samples": -receipt.samples, "classes": left})
        return receipt

    # Prediction

    def predict(
        self,
        inputs: Any,
        task: str | None = None,
        score: str = JOINT,
        abstain_below: float = 0.0,
    ) -> Prediction:
        """The class of each input, with confidence and variance.

        If no task is named, all classes are compared at once (`score="joint"`), or with coresets also the task inferred
        by another score, of `inference.TASK_SCORES`.
        """
        model = self.as_it_is()
        name = None if task is None else model._known(task)
        answers = model.heads.answer(model._prepare(inputs), model.tasks, name, score, abstain_below)
        asked = model.tasks if name is None else [name]  # one of a thousand tasks is not to be looked for
        names = {model.tasks[task_name].lesson: task_name for task_name in asked}
        chosen = [names[lesson] for lesson in answers.task.tolist()]
        pairs = zip(chosen, answers.label.tolist(), strict=True)
        return Prediction(
            label_array([None if label < 0 else model.tasks[task_name].labels[label] for task_name, label in pairs]),
            label_array(chosen),
            *(column.cpu().numpy() for column in answers[2:]),
        )

    # Unknown queries

    def reject_unknown(
        self,
        inputs: Any,
        error_rate: float = DEFAULT_RATE,
        score: str = DEFAULT_SCORE,
        task: str | None = None,
    ) -> KnownScores:
        """From now on give no answer (None) to queries that are less known than nearly all of these `inputs`, which are
        known to be in scope: of further ones like them `error_rate` are rejected. They must not have been learned, and
        need no labels. `score`: of `unknowns.SCORES`. For predictions without a task, or for those of a task.

        After more lessons do it again: until then the rate may be another, and predictions warn. Forgetting undoes it.
        """
        known = KnownScores.of(score, error_rate, self.known_scores(inputs, score, task))
        heads = self._streaming()
        heads.known = {**heads.known, None if task is None else str(task): known}
        return known

    def known_scores(self, inputs: Any, score: str = DEFAULT_SCORE, task: str | None = None) -> Tensor:
        """How well inputs are known, higher is better, by a score of `unknowns.SCORES`."""
        model = self.as_it_is()
        heads, queries = model._streaming(), model._prepare(inputs)
        return heads.known_scores(queries, model.tasks, None if task is None else model._known(task), score)

    def drift(self, task: str | None = None, window: int = 100, false_alarms: float = 1e-3) -> Drift:
        """What tells whether queries are still like those of `reject_unknown`: `update` it with the column `known` of
        predictions.
        """
        known = self._streaming().known_for(self.tasks, None if task is None else self._known(task))
        if known is None:
            raise KclError("tell the model known queries first: reject_unknown")
        return Drift(len(known.scores), window, false_alarms)

    def logits(self, inputs: Any, task: str | None = None) -> Tensor:
        """Calibrated scores of a task's classes, in the order of `tasks[task].labels`, or of all `labels` without a
        task. The fastest way to predict.
        """
        model = self.as_it_is()
        queries = model._prepare(inputs)  # raises if nothing was learned
        return model.heads.logits(queries, model.tasks, None if task is None else model._known(task))

    def probabilities(self, inputs: Any, task: str | None = None) -> Tensor:
        """The probabilities of a task's classes, or of all `labels`, in the order of `logits`; refused where they are
        not finite, which in `logits` they may be.
        """
        return finite(self.logits(inputs, task).softmax(-1))

    def accuracy(self, inputs: Any, labels: Any = None, task: str | None = None) -> float:
        """Percent of inputs classified correctly."""
        _, expected = labelled(inputs, labels)
        predicted = self.predict(inputs, task).label.tolist()
        return 100.0 * sum(a == b for a, b in zip(predicted, expected, strict=True)) / len(expected)

    def _known(self, name: str) -> str:
        if str(name) not in self.tasks:
            raise KclError(f"task {str(name)!r} was not learned; {nearest(str(name), list(self.tasks))}")
        return str(name)

    def _prepare(self, inputs: Any) -> Tensor:
        """Inputs scaled for the network, on its device."""
        device = self.heads.device  # raises if nothing was learned
        if not self.tasks:
            raise KclError(NOTHING_LEARNED)
        return self.view.scale(self._as_stored(as_tensor(inputs), column_names(inputs)).to(device))

    def _as_stored(self, x: Tensor, names: Sequence[str]) -> Tensor:
        """Inputs of the shape, columns and kind that the model learned from."""
        check_columns(self.columns, names)
        of_bytes = self.dtype == torch.uint8
        if (x.dtype == torch.uint8) != of_bytes:
            kind = "bytes (uint8), which are divided by 255" if of_bytes else "numbers, which are used as they are"
            raise KclError(f"the model learned from {kind}; these inputs are {x.dtype}: convert them")
        return checked(x if of_bytes else x.float(), self.input_shape or (), self.columns)

    def as_it_is(self) -> ContinualModel:
        """This model in its present state, whatever other threads teach it meanwhile."""
        return copy.copy(self)

    @contextmanager
    def _changed(self) -> Iterator[ContinualModel]:
        """A copy to be changed, whose state becomes that of this model at the end, unless there was an error."""
        before, model = self.state, copy.copy(self)
        model.state = before.fork()
        yield model
        if self.state is not before:
            raise KclError("the model was taught by two threads at once, and only the first lesson is kept: take turns")
        self.state = model.state
