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
    """(n,): the class; None where the model abstains."""
    task: np.ndarray
    """(n,) of text: the task of that class, named or inferred."""
    confidence: np.ndarray
    """(n,): the probability of that class."""
    variance: np.ndarray
    """(n,): how unlike all that was learned the query is; near zero for what is known well."""
    task_margin: np.ndarray
    """(n,): the lead over the second-best: of the class's probability, or of the task's score where a score inferred
    the task; infinite if the task was named or nothing else was learned.
    """
    known: np.ndarray
    """(n,): the share of known queries that are less known (`reject_unknown`), else not a number."""


class ContinualModel:
    """A model for use in programs: `learn` named tasks at any time, `predict` with or without a name.

    Any number of threads may predict while one thread teaches: they see the model from before the lesson until it ends.

    Parameters
    ----------
    seed : int
        Fixes all randomness.
    backbone : str or torch.nn.Module, optional
        A name (`kcl list backbones`), or your own module from n inputs to (n, d) features, which is copied.
    device : str or torch.device
        Where the model computes.
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
        self.seed, self.device, self.held_out_share, self.given = seed, device, held_out_share, settings

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
            raise KclError("this needs a network with coresets; the model has a streaming head")
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
            raise KclError("this needs a streaming head (head='streaming'); the model has a network with coresets")
        return self.heads

    def _choose(self, x: Tensor) -> None:
        """Choose head, settings and scaling from the first samples, where they were left open, and begin."""
        rows = x.ndim == 2 and x.dtype != torch.uint8
        if self.open and defaults.streams(x.shape[1:], rows):
            self.head = "streaming"
        elif self.head == "coreset" and self.module is None:
            self.settings = defaults.coreset_settings(x.shape[1:], rows, self.given)
        if self.standardise is None:
            by_length = self.head == "streaming" and self.streaming.unit_length
            self.standardise = rows and self.module is None and not by_length
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

        Parameters
        ----------
        inputs : (n, d) or (n, channels, height, width)
            n queries.
        task : str, optional
            The task they belong to. By default all classes of all tasks are compared.
        score : str, by default "joint"
            With coresets and without a task: "joint" compares all classes with one classifier; any other score infers
            the task first, and then answers within it.
        abstain_below : float in 0 … 1
            Queries whose confidence is lower get no answer (None).
        """
        if not 0.0 <= abstain_below <= 1.0:
            raise KclError(f"abstain_below must be a probability from 0 to 1, not {abstain_below:g}")
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
        """From now on give no answer (None) to queries that are less known than nearly all of these.

        After more lessons call it again: until then the rate may differ, and predictions warn. Forgetting undoes it.

        Parameters
        ----------
        inputs : (n, d) or (n, channels, height, width)
            Queries that you know to be fine. They need no labels, and must not have been learned.
        error_rate : float in 0 … 1, by default 0.05
            The share of further queries like them that will be rejected.
        score : "mahalanobis" (default), "response" or "variance"
            How well a query is known.
        task : str, optional
            For predictions in this task; by default for those without a task.
        """
        known = KnownScores.of(score, error_rate, self.known_scores(inputs, score, task))
        heads = self._streaming()
        heads.known = {**heads.known, None if task is None else str(task): known}
        return known

    def known_scores(self, inputs: Any, score: str = DEFAULT_SCORE, task: str | None = None) -> Tensor:
        """How well each of n inputs is known, (n,), higher is better; parameters as for `reject_unknown`."""
        model = self.as_it_is()
        heads, queries = model._streaming(), model._prepare(inputs)
        return heads.known_scores(queries, model.tasks, None if task is None else model._known(task), score)

    def drift(self, task: str | None = None, window: int = 100, false_alarms: float = 1e-3) -> Drift:
        """What tells whether queries are still like those of `reject_unknown`.

        Pass `update` of it the `known` of each prediction: it returns True where a window of so many answers deviates
        further than chance does in `false_alarms` of all windows.
        """
        known = self._streaming().known_for(self.tasks, None if task is None else self._known(task))
        if known is None:
            raise KclError("call reject_unknown with known queries first")
        return Drift(len(known.scores), window, false_alarms)

    def logits(self, inputs: Any, task: str | None = None) -> Tensor:
        """Calibrated scores, (n, classes): of a task's classes in the order of `tasks[task].labels`, without a task of
        all `labels`. The fastest way to predict.
        """
        model = self.as_it_is()
        queries = model._prepare(inputs)  # raises if nothing was learned
        return model.heads.logits(queries, model.tasks, None if task is None else model._known(task))

    def probabilities(self, inputs: Any, task: str | None = None) -> Tensor:
        """The probabilities of the classes, (n, classes), in the order of `logits`; refused where they are not finite,
        which in `logits` they may be.
        """
        return finite(self.logits(inputs, task).softmax(-1))

    def accuracy(self, inputs: Any, labels: Any = None, task: str | None = None) -> float:
        """Percent of inputs classified correctly, whose labels are (n,) or come with a dataset."""
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
