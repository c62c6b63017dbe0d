"""A model that keeps learning: arrays in, labels out, tasks by name."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from kcl.benchmarks.task import Examples, View
from kcl.core.randomness import numpy_generator
from kcl.core.settings import nearest
from kcl.errors import KclError
from kcl.methods.kcl_settings import KclSettings
from kcl.models.calibration import expected_calibration_error, fit_temperature
from kcl.models.inference import (
    DEFAULT_SCORE,
    NOTHING_LEARNED,
    Answerer,
    Answers,
    KnownTask,
    as_tensor,
    checked,
    start_run,
)
from kcl.models.lessons import Lesson, LessonLearning, choose_coreset
from kcl.training.stack import RunStack
from kcl.training.step_progress import OnStep

Label = str | int | float | bool
LEAST_HELD_OUT = 10
"""Fewer held-out samples would not calibrate anything."""


@dataclass(frozen=True)
class LearnedTask:
    """A learned task, without its coreset."""

    lesson: int
    """The last lesson on this task. It numbers the task's random draws."""
    labels: tuple[Label, ...]
    """The classes, in the order of the scores."""
    seen: tuple[int, ...]
    """Samples of each class seen so far."""
    temperature: float = 1.0


class Prediction(NamedTuple):
    """Predictions for n queries, as arrays."""

    label: np.ndarray
    """The class; None where the model abstains."""
    task: np.ndarray
    confidence: np.ndarray
    variance: np.ndarray
    task_margin: np.ndarray


class ContinualModel:
    """Kernel continual learning for use in programs: `learn` named tasks at any time, `predict` with or without a name.

    `backbone` is a name (`kcl list backbones`) or your own module, which is copied. `standardise` scales each input
    feature to zero mean and unit variance, measured on the first task. `held_out_share` of each lesson's samples is not
    trained on but used to calibrate the task's probabilities. Every further keyword is a setting.
    """

    def __init__(
        self,
        seed: int = 0,
        backbone: nn.Module | str | None = None,
        device: str | torch.device = "cpu",
        standardise: bool = False,
        held_out_share: float = 0.0,
        **settings: Any,
    ) -> None:
        if not 0.0 <= held_out_share <= 0.5:
            raise KclError(f"held_out_share must lie in 0 … 0.5, not {held_out_share}")
        if isinstance(backbone, str):
            settings["backbone"], backbone = backbone, None
        self.settings, self.module = KclSettings().replace(**settings), backbone
        self.seed, self.device, self.standardise, self.held_out_share = seed, device, standardise, held_out_share
        self.tasks: dict[str, LearnedTask] = {}
        self.history: list[dict[str, Any]] = []
        self.view, self.dtype = View(), torch.float32
        self.columns: tuple[str, ...] = ()  # names of the input features, where they come from a table
        self.input_shape: tuple[int, ...] | None = None
        self._stack: RunStack | None = None

    # State

    @property
    def stack(self) -> RunStack:
        if self._stack is None:
            raise KclError(NOTHING_LEARNED)
        return self._stack

    @property
    def labels(self) -> tuple[Label, ...]:
        """The classes of all tasks, each once, in the order of first appearance."""
        return tuple(dict.fromkeys(label for task in self.tasks.values() for label in task.labels))

    def begin(self, input_shape: Sequence[int], dtype: torch.dtype, view: View) -> None:
        """Create the untrained model, once the shape of the inputs is known."""
        method = LessonLearning(self.settings, 0)
        stack, answerer = start_run(method, input_shape, self.module, self.seed, self.device)
        self.adopt(stack, input_shape, dtype, view, answerer)

    def adopt(
        self, stack: RunStack, input_shape: Sequence[int], dtype: torch.dtype, view: View, answerer: Answerer
    ) -> None:
        """Use a run of kernel continual learning as this model's state."""
        self.input_shape, self.dtype, self.view = tuple(input_shape), dtype, view
        self._stack, self.answerer = stack, answerer

    def refresh(self) -> None:
        """Bring the answerer up to date. Heads are solved again when next needed."""
        self.answerer.tasks = {
            task.lesson: KnownTask(self.stack.memory_kept(0, task.lesson), self.view, task.temperature)
            for task in self.tasks.values()
        }
        self.answerer.weights_changed()

    # Learning

    def learn(
        self,
        inputs: Any,
        labels: Any,
        task: str | None = None,
        on_step: OnStep = lambda _: None,
        classes: Sequence[Label] = (),
    ) -> None:
        """Learn a new task, or more samples and new classes of an old one.

        `classes` lists classes of the task that may not have samples yet. If anything fails, the model is left as it
        was before the lesson.
        """
        name = f"task {len(self.tasks)}" if task is None else str(task)
        if not name.strip():
            raise KclError("a task needs a name with at least one visible character")
        x, sample_labels = _samples(inputs, labels)
        undo = self._snapshot()
        try:
            if self._stack is None:
                view = _standardising(x, self.settings) if self.standardise else View()
                self.begin(x.shape[1:], x.dtype, view)
            self._learn(checked(self._as_stored(x), self.input_shape or ()), sample_labels, name, on_step, classes)
        except BaseException:
            undo()
            raise

    def _learn(
        self, x: Tensor, sample_labels: list[Label], name: str, on_step: OnStep, announced: Sequence[Label]
    ) -> None:
        stack, number = self.stack, 1 + max((task.lesson for task in self.tasks.values()), default=-1)
        if not isinstance(stack.method, LessonLearning):
            raise KclError("this model shares its weights with a learner; to teach it more, save it and load it again")
        rng = numpy_generator(self.seed, "lesson", number)
        old = self.tasks.get(name)
        known = old.labels if old else ()
        if len({isinstance(label, str) for label in (*known, *sample_labels, *announced)}) > 1:
            raise KclError(f"the labels of task {name!r} mix text and numbers: use one or the other")
        classes = known + tuple(sorted({*sample_labels, *announced} - set(known)))
        if len(classes) < 2:
            raise KclError(f"task {name!r} has only one class, {classes[0]!r}; it needs at least two")
        positions = {label: position for position, label in enumerate(classes)}
        y = torch.tensor([positions[label] for label in sample_labels])
        new_counts = torch.bincount(y, minlength=len(classes)).tolist()
        x, y, held_x, held_y = self._hold_out(x, y, rng)
        old_size = 0
        if old is not None:
            memory = stack.memory_kept(0, old.lesson)
            old_size = len(memory["inputs"])
            x = torch.cat([memory["inputs"].cpu(), x])
            y = torch.cat([memory["targets"].argmax(-1).cpu(), y])
        seen = (*(old.seen if old else ()), *[0] * (len(classes) - len(known)))
        coreset, learned = choose_coreset(y.numpy(), old_size, seen, self.settings.coreset_size_per_class, rng)
        no_test = Examples(x[:0], torch.arange(0), y[:0])
        train = Examples(x, torch.arange(len(y)), y)
        stack.learn([Lesson(number, train, no_test, tuple(range(len(classes))), self.view, coreset, learned)], on_step)
        if stack.diverged[0]:
            raise KclError(f"the loss of task {name!r} stopped being finite, so it was not learned; try a lower lr")
        if old is not None:
            del stack.kept[old.lesson]
        seen_now = tuple(before + new for before, new in zip(seen, new_counts, strict=True))
        # The old temperature stays where too few samples are held out to fit a new one: it is better than none.
        self.tasks[name] = LearnedTask(number, classes, seen_now, old.temperature if old else 1.0)
        self.refresh()
        entry = {"task": name, "samples": len(sample_labels), "classes": len(classes)}
        self.history.append(entry | (self._calibrate(name, held_x, held_y) if len(held_y) else {}))

    def _hold_out(self, x: Tensor, y: Tensor, rng: np.random.Generator) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Split the samples into those to learn from and those that only calibrate (none if there are too few)."""
        count = round(self.held_out_share * len(y))
        order = torch.from_numpy(rng.permutation(len(y))) if count >= LEAST_HELD_OUT else torch.arange(len(y))
        count = count if count >= LEAST_HELD_OUT else 0
        # Every class keeps its first sample for training: a class that is not learned cannot be calibrated either.
        first = torch.tensor([int(torch.nonzero(y[order] == value)[0]) for value in y.unique()])
        free = torch.ones(len(y), dtype=torch.bool)
        free[first] = False
        held = order[torch.nonzero(free).flatten()[:count]]
        rest = torch.ones(len(y), dtype=torch.bool)
        rest[held] = False
        return x[rest], y[rest], x[held], y[held]

    def _calibrate(self, name: str, x: Tensor, y: Tensor) -> dict[str, Any]:
        """Fit the task's temperature on held-out samples; returns the accuracy and calibration error on them."""
        task = self.tasks[name]
        logits = self.answerer.logits(self._prepare(x), task.lesson).cpu() * task.temperature
        temperature = fit_temperature(logits, y)
        self.tasks[name] = LearnedTask(task.lesson, task.labels, task.seen, temperature)
        self.answerer.tasks[task.lesson] = self.answerer.tasks[task.lesson]._replace(temperature=temperature)
        confidence, answers = logits.softmax(-1).max(-1)
        return {
            "held_out": len(y),
            "held_out_accuracy": 100.0 * float((answers == y).double().mean()),
            "held_out_ece": expected_calibration_error(confidence, answers == y),
            "temperature": temperature,
        }

    # Prediction

    def predict(
        self,
        inputs: Any,
        task: str | None = None,
        score: str = DEFAULT_SCORE,
        abstain_below: float = 0.0,
    ) -> Prediction:
        """The class of each input, with confidence and variance. If no task is named, it is inferred by `score`."""
        answers = self.answer(inputs, task, score, abstain_below)
        names, tasks = list(self.tasks), list(self.tasks.values())
        pairs = list(zip(answers.task.tolist(), answers.label.tolist(), strict=True))
        return Prediction(
            label_array([None if label < 0 else tasks[position].labels[label] for position, label in pairs]),
            label_array([names[position] for position, _ in pairs]),
            *(column.cpu().numpy() for column in (answers.confidence, answers.variance, answers.task_margin)),
        )

    def answer(
        self, inputs: Any, task: str | None = None, score: str = DEFAULT_SCORE, abstain_below: float = 0.0
    ) -> Answers:
        """The same as tensors, with tasks and classes by their positions."""
        order = {known.lesson: position for position, known in enumerate(self.tasks.values())}
        index = None if task is None else self._task(task).lesson
        queries = self._prepare(inputs)  # raises if nothing was learned
        answers = self.answerer.answer(queries, index, score, abstain_below)
        positions = torch.tensor([order[lesson] for lesson in sorted(self.answerer.tasks)], device=answers.task.device)
        return answers._replace(task=positions[answers.task])

    def logits(self, inputs: Any, task: str) -> Tensor:
        """Calibrated scores of a task's classes, in the order of `tasks[task].labels`. The fastest way to predict."""
        queries = self._prepare(inputs)  # raises if nothing was learned
        return self.answerer.logits(queries, self._task(task).lesson)

    def probabilities(self, inputs: Any, task: str) -> Tensor:
        return self.logits(inputs, task).softmax(-1)

    def accuracy(self, inputs: Any, labels: Any, task: str | None = None) -> float:
        """Percent of inputs classified correctly."""
        _, expected = _samples(inputs, labels)
        predicted = self.predict(inputs, task).label.tolist()
        return 100.0 * sum(a == b for a, b in zip(predicted, expected, strict=True)) / len(expected)

    def _task(self, name: str) -> LearnedTask:
        if str(name) not in self.tasks:
            raise KclError(f"task {str(name)!r} was not learned; {nearest(str(name), list(self.tasks))}")
        return self.tasks[str(name)]

    def _prepare(self, inputs: Any) -> Tensor:
        """Inputs scaled for the network, on its device."""
        queries = checked(self._as_stored(inputs), self.input_shape or ())
        return self.view.scale(queries.to(self.stack.device))

    def _as_stored(self, inputs: Any) -> Tensor:
        _ = self.stack  # raises if nothing was learned
        x = as_tensor(inputs)
        if (x.dtype == torch.uint8) != (self.dtype == torch.uint8):
            kinds = {True: "bytes (uint8), which are divided by 255", False: "numbers, which are used as they are"}
            kind = kinds[self.dtype == torch.uint8]
            raise KclError(f"the model learned from {kind}; these inputs are {x.dtype}: convert them")
        return x if x.dtype == torch.uint8 else x.float()

    # Undoing a failed lesson

    def _snapshot(self) -> Callable[[], None]:
        """A function that restores the current state."""
        tasks, history, stack = dict(self.tasks), list(self.history), self._stack
        inputs = self.input_shape, self.dtype, self.view
        restore = None if stack is None else stack.snapshot()

        def undo() -> None:
            self.tasks, self.history, self._stack = tasks, history, stack
            self.input_shape, self.dtype, self.view = inputs
            if restore is not None:
                restore()
                self.refresh()

        return undo


def label_array(values: Sequence[Any]) -> np.ndarray:
    """An array of labels in their data type; of objects where some are None or types are mixed."""
    if len({type(value) for value in values}) == 1 and values[0] is not None:
        return np.array(values)
    objects = np.empty(len(values), dtype=object)
    objects[:] = values
    return objects


def _samples(inputs: Any, labels: Any) -> tuple[Tensor, list[Label]]:
    x = as_tensor(inputs)
    y = np.asarray(labels)
    if y.ndim != 1 or x.ndim < 2 or len(x) != len(y):
        raise KclError(f"inputs of shape {tuple(x.shape)} do not match labels of shape {y.shape}: give one label each")
    if len(y) == 0:
        raise KclError("there are no samples to learn from")
    values = y.tolist()
    kinds = {type(value) for value in values}
    if not kinds <= {str, int, float, bool} or len(kinds) > 1:
        raise KclError(f"labels must be all text or all numbers, not {', '.join(sorted(k.__name__ for k in kinds))}")
    if float in kinds and not np.isfinite(y).all():
        raise KclError("some labels are not finite numbers")
    return (x if x.dtype == torch.uint8 else x.float()), values


def _standardising(x: Tensor, settings: KclSettings) -> View:
    """Scales every input feature to zero mean and unit variance; constant features are only centred.

    Without a backbone and without normalisation, inputs are also divided by √d, so that the width of a kernel does not
    depend on the number of features.
    """
    if x.ndim != 2 or x.dtype == torch.uint8:
        raise KclError(f"standardise needs rows of numbers, not inputs of shape {tuple(x.shape)} and type {x.dtype}")
    raw_inputs = settings.backbone == "identity" and settings.feature_norm == "none"
    std = x.double().std(0, correction=0)
    # Relative to the feature's size: rounding gives a large constant some spread, and a small unit is no constant.
    std = torch.where(std > 1e-9 * x.double().abs().amax(0), std, 1.0) * (x.shape[1] ** 0.5 if raw_inputs else 1.0)
    return View(None, tuple(x.double().mean(0).tolist()), tuple(std.tolist()))
