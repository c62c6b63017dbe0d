"""A model that keeps learning: arrays in, labels out, tasks by name."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
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
from kcl.models.inference import DEFAULT_SCORE, NOTHING_LEARNED, Answerer, as_tensor, checked, start_run
from kcl.models.lessons import (
    Label,
    Lesson,
    LessonLearning,
    checked_samples,
    choose_coreset,
    hold_out,
    standardising,
)
from kcl.training.stack import RunStack
from kcl.training.step_progress import OnStep


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
        self._answerer: Answerer | None = None

    # State

    @property
    def answerer(self) -> Answerer:
        if self._answerer is None:
            raise KclError(NOTHING_LEARNED)
        return self._answerer

    @property
    def stack(self) -> RunStack:
        return self.answerer.stack

    @property
    def labels(self) -> tuple[Label, ...]:
        """The classes of all tasks, each once, in the order of first appearance."""
        return tuple(dict.fromkeys(label for task in self.tasks.values() for label in task.labels))

    def begin(self, input_shape: Sequence[int], dtype: torch.dtype, view: View) -> None:
        """Create the untrained model, once the shape of the inputs is known."""
        stack = start_run(LessonLearning(self.settings, 0), input_shape, self.module, self.seed, self.device)
        self.adopt(Answerer(stack), input_shape, dtype, view)

    def adopt(self, answerer: Answerer, input_shape: Sequence[int], dtype: torch.dtype, view: View) -> None:
        """Use a run of kernel continual learning as this model's state."""
        self._answerer, self.input_shape, self.dtype, self.view = answerer, tuple(input_shape), dtype, view

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
        x, sample_labels = checked_samples(inputs, labels)
        undo = self._snapshot()
        try:
            if self._answerer is None:
                view = standardising(x, self.settings) if self.standardise else View()
                self.begin(x.shape[1:], x.dtype, view)
            self._learn(self._as_stored(x), sample_labels, name, on_step, classes)
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
        old = self.tasks.get(name, LearnedTask(-1, (), ()))
        if len({isinstance(label, str) for label in (*old.labels, *sample_labels, *announced)}) > 1:
            raise KclError(f"the labels of task {name!r} mix text and numbers: use one or the other")
        classes = old.labels + tuple(sorted({*sample_labels, *announced} - set(old.labels)))
        if len(classes) < 2:
            raise KclError(f"task {name!r} has only one class, {classes[0]!r}; it needs at least two")
        positions = {label: position for position, label in enumerate(classes)}
        y = torch.tensor([positions[label] for label in sample_labels])
        seen = (*old.seen, *[0] * (len(classes) - len(old.labels)))
        seen_now = (torch.tensor(seen) + torch.bincount(y, minlength=len(classes))).tolist()
        x, y, held_x, held_y = hold_out(x, y, self.held_out_share, rng)
        old_size = 0
        if name in self.tasks:
            memory = stack.memory_kept(0, old.lesson)
            old_size = len(memory["inputs"])
            x = torch.cat([memory["inputs"].cpu(), x])
            y = torch.cat([memory["targets"].argmax(-1).cpu(), y])
        coreset, learned = choose_coreset(y.numpy(), old_size, seen, self.settings.coreset_size_per_class, rng)
        no_test = Examples(x[:0], torch.arange(0), y[:0])
        train = Examples(x, torch.arange(len(y)), y)
        stack.learn([Lesson(number, train, no_test, tuple(range(len(classes))), self.view, coreset, learned)], on_step)
        if stack.diverged[0]:
            raise KclError(f"the loss of task {name!r} stopped being finite, so it was not learned; try a lower lr")
        stack.kept.pop(old.lesson, None)
        # The old temperature stays where too few samples are held out to fit a new one: it is better than none.
        self._set_task(name, LearnedTask(number, classes, tuple(seen_now), old.temperature))
        entry = {"task": name, "samples": len(sample_labels), "classes": len(classes)}
        self.history.append(entry | (self._calibrate(name, held_x, held_y) if len(held_y) else {}))

    def _set_task(self, name: str, task: LearnedTask) -> None:
        self.tasks[name] = task
        self.answerer.temperatures[task.lesson] = task.temperature

    def _calibrate(self, name: str, x: Tensor, y: Tensor) -> dict[str, Any]:
        """Fit the task's temperature on held-out samples; returns the accuracy and calibration error on them."""
        task = self.tasks[name]
        logits = self.answerer.logits(self._prepare(x), task.lesson).cpu() * task.temperature
        temperature = fit_temperature(logits, y)
        self._set_task(name, replace(task, temperature=temperature))
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
        named = self.tasks if task is None else {str(task): self._task(task)}
        index = None if task is None else named[str(task)].lesson
        answers = self.answerer.answer(self._prepare(inputs), index, score, abstain_below)
        names = {known.lesson: name for name, known in named.items()}
        chosen = [names[lesson] for lesson in answers.task.tolist()]
        pairs = zip(chosen, answers.label.tolist(), strict=True)
        return Prediction(
            label_array([None if label < 0 else named[name].labels[label] for name, label in pairs]),
            label_array(chosen),
            *(column.cpu().numpy() for column in answers[2:]),
        )

    def logits(self, inputs: Any, task: str) -> Tensor:
        """Calibrated scores of a task's classes, in the order of `tasks[task].labels`. The fastest way to predict."""
        return self.answerer.logits(self._prepare(inputs), self._task(task).lesson)

    def probabilities(self, inputs: Any, task: str) -> Tensor:
        return self.logits(inputs, task).softmax(-1)

    def accuracy(self, inputs: Any, labels: Any, task: str | None = None) -> float:
        """Percent of inputs classified correctly."""
        _, expected = checked_samples(inputs, labels)
        predicted = self.predict(inputs, task).label.tolist()
        return 100.0 * sum(a == b for a, b in zip(predicted, expected, strict=True)) / len(expected)

    def _task(self, name: str) -> LearnedTask:
        if str(name) not in self.tasks:
            raise KclError(f"task {str(name)!r} was not learned; {nearest(str(name), list(self.tasks))}")
        return self.tasks[str(name)]

    def _prepare(self, inputs: Any) -> Tensor:
        """Inputs scaled for the network, on its device."""
        return self.view.scale(self._as_stored(inputs).to(self.stack.device))

    def _as_stored(self, inputs: Any) -> Tensor:
        """Inputs of the shape and kind that the model learned from."""
        x, of_bytes = as_tensor(inputs), self.dtype == torch.uint8
        if (x.dtype == torch.uint8) != of_bytes:
            kind = "bytes (uint8), which are divided by 255" if of_bytes else "numbers, which are used as they are"
            raise KclError(f"the model learned from {kind}; these inputs are {x.dtype}: convert them")
        return checked(x if of_bytes else x.float(), self.input_shape or ())

    def _snapshot(self) -> Callable[[], None]:
        """A function that restores the current state."""
        tasks, history, answerer = dict(self.tasks), list(self.history), self._answerer
        inputs = self.input_shape, self.dtype, self.view
        restore = None if answerer is None else answerer.stack.snapshot()

        def undo() -> None:
            self.tasks, self.history, self._answerer = tasks, history, answerer
            self.input_shape, self.dtype, self.view = inputs
            if restore is not None:
                restore()

        return undo


def label_array(values: Sequence[Any]) -> np.ndarray:
    """An array of labels in their data type; of objects where some are None or types are mixed."""
    if len({type(value) for value in values}) == 1 and values[0] is not None:
        return np.array(values)
    objects = np.empty(len(values), dtype=object)
    objects[:] = values
    return objects
