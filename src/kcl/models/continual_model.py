"""One model that keeps learning and answering: arrays in, labels out, tasks by name."""

from __future__ import annotations

import copy
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
from kcl.methods.kcl import KernelModel
from kcl.methods.kcl_settings import KclSettings
from kcl.methods.recipes import published_backbone
from kcl.models.calibration import expected_calibration_error, fit_temperature
from kcl.models.inference import DEFAULT_SCORE, Answerer, Answers, KnownTask, as_tensor, checked
from kcl.models.lessons import Lesson, LessonLearning, choose_coreset
from kcl.nets.backbone import Backbone, ModuleBackbone
from kcl.training.stack import RunStack
from kcl.training.step_progress import OnStep

Label = str | int | float | bool
LEAST_HELD_OUT = 10


@dataclass(frozen=True)
class LearnedTask:
    """What is known of a task beside its coreset."""

    lesson: int
    """The lesson that taught it last; everything random about the task is addressed by it."""
    labels: tuple[Label, ...]
    """Its classes, in the order of its scores."""
    seen: tuple[int, ...]
    """Samples of each class shown so far."""
    temperature: float = 1.0


class Prediction(NamedTuple):
    """What is answered to n queries, as arrays."""

    label: np.ndarray
    """The class; None where the answer is withheld."""
    task: np.ndarray
    confidence: np.ndarray
    variance: np.ndarray
    task_margin: np.ndarray


class ContinualModel:
    """Kernel continual learning for programs: `learn` a named task at any time, `predict` with its name or without.

    `backbone` is a name (`kcl list backbones`) or a module of yours, which is copied. `standardise` takes out each
    input feature's mean and standard deviation, as the first task has them. `held_out_share` of each lesson's samples
    is not trained on but used to calibrate the task's probabilities. Every further keyword is a setting.
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
        named = {"backbone": backbone} if isinstance(backbone, str) else {}
        self.settings = KclSettings().replace(**settings, **named)
        self.seed, self.device, self.standardise, self.held_out_share = seed, device, standardise, held_out_share
        self.module = None if isinstance(backbone, str) else backbone
        self.tasks: dict[str, LearnedTask] = {}
        self.history: list[dict[str, Any]] = []
        self.view, self.dtype = View(), torch.float32
        self.columns: tuple[str, ...] = ()  # the names of the input features, for who reads tables
        self.input_shape: tuple[int, ...] | None = None
        self._stack: RunStack | None = None

    # What is there

    @property
    def stack(self) -> RunStack:
        if self._stack is None:
            raise KclError("no task was learned yet, so there is nothing to answer from: learn a task first")
        return self._stack

    @property
    def labels(self) -> tuple[Label, ...]:
        """Every class of every task, each once, in the order they were met."""
        return tuple(dict.fromkeys(label for task in self.tasks.values() for label in task.labels))

    def begin(self, input_shape: Sequence[int], dtype: torch.dtype, view: View) -> None:
        """Make the untrained model, once it is known what inputs look like."""
        self.input_shape = tuple(input_shape)
        method = LessonLearning(self.settings, 0)
        stack = RunStack([method], [self._make_backbone], [self.seed], self.device, precision="float32", plain=True)
        model = stack.model_at_test(0)
        assert isinstance(model, KernelModel)  # noqa: S101 - what the method builds
        self.adopt(stack, input_shape, dtype, view, Answerer(method, model, self.seed))

    def adopt(
        self, stack: RunStack, input_shape: Sequence[int], dtype: torch.dtype, view: View, answerer: Answerer
    ) -> None:
        """Take a run of kernel continual learning as this model's own."""
        self.input_shape, self.dtype, self.view = tuple(input_shape), dtype, view
        self._stack, self.answerer = stack, answerer

    def _make_backbone(self) -> Backbone:
        assert self.input_shape is not None  # noqa: S101 - set before the backbone is made
        if self.module is None:
            return published_backbone(self.input_shape, self.settings)
        if isinstance(self.module, Backbone):
            return copy.deepcopy(self.module)
        return ModuleBackbone(self.module, self.input_shape)

    def refresh(self) -> None:
        """Let the answerer know what was learned; heads are solved again when they are next needed."""
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
        """Learn a task, or more of one that was learned before: further samples, new classes.

        `classes` announces classes of the task of which there may be no sample yet. Either all of the lesson is learned
        or, should anything go wrong, none of it.
        """
        name = f"task {len(self.tasks)}" if task is None else str(task)
        if not name.strip():
            raise KclError("a task needs a name that can be seen")
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
            raise KclError(f"the labels of task {name!r} are text here and numbers there: use one or the other")
        classes = known + tuple(sorted({*sample_labels, *announced} - set(known)))
        if len(classes) < 2:
            raise KclError(f"task {name!r} has the one class {classes[0]!r}; it needs at least two to tell apart")
        places = {label: place for place, label in enumerate(classes)}
        y = torch.tensor([places[label] for label in sample_labels])
        shown = torch.bincount(y, minlength=len(classes)).tolist()
        x, y, held_x, held_y = self._hold_out(x, y, rng)
        kept = 0
        if old is not None:
            memory = stack.memory_kept(0, old.lesson)
            kept = len(memory["inputs"])
            x = torch.cat([memory["inputs"].cpu(), x])
            y = torch.cat([memory["targets"].argmax(-1).cpu(), y])
        seen = (*(old.seen if old else ()), *[0] * (len(classes) - len(known)))
        coreset, learned = choose_coreset(y.numpy(), kept, seen, self.settings.coreset_size_per_class, rng)
        no_test = Examples(x[:0], torch.arange(0), y[:0])
        train = Examples(x, torch.arange(len(y)), y)
        stack.learn([Lesson(number, train, no_test, tuple(range(len(classes))), self.view, coreset, learned)], on_step)
        if stack.diverged[0]:
            raise KclError(f"the loss of task {name!r} stopped being finite, so it was not learned; try a lower lr")
        if old is not None:
            del stack.kept[old.lesson]
        total = tuple(before + new for before, new in zip(seen, shown, strict=True))
        # With too few samples to fit a temperature the one from before stays: it is nearer than none.
        self.tasks[name] = LearnedTask(number, classes, total, old.temperature if old else 1.0)
        self.refresh()
        entry = {"task": name, "samples": len(sample_labels), "classes": len(classes)}
        self.history.append(entry | (self._calibrate(name, held_x, held_y) if len(held_y) else {}))

    def _hold_out(self, x: Tensor, y: Tensor, rng: np.random.Generator) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Samples to learn from, and those that only calibrate; too few of them would calibrate nothing."""
        count = round(self.held_out_share * len(y))
        order = torch.from_numpy(rng.permutation(len(y))) if count >= LEAST_HELD_OUT else torch.arange(len(y))
        count = count if count >= LEAST_HELD_OUT else 0
        # The first sample of every class stays: a class that is never learned could not be calibrated either.
        first = torch.tensor([int(torch.nonzero(y[order] == value)[0]) for value in y.unique()])
        free = torch.ones(len(y), dtype=torch.bool)
        free[first] = False
        held = order[torch.nonzero(free).flatten()[:count]]
        rest = torch.ones(len(y), dtype=torch.bool)
        rest[held] = False
        return x[rest], y[rest], x[held], y[held]

    def _calibrate(self, name: str, x: Tensor, y: Tensor) -> dict[str, Any]:
        """Fit the task's temperature on samples that were not trained on; what was measured on them."""
        task = self.tasks[name]
        logits = self.answerer.logits(self._shown(x), task.lesson).cpu() * task.temperature
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

    # Answering

    def predict(
        self,
        inputs: Any,
        task: str | None = None,
        score: str = DEFAULT_SCORE,
        abstain_below: float = 0.0,
    ) -> Prediction:
        """The class of each input and how sure that is; the task too, found by `score` where none is named."""
        answers = self.answer(inputs, task, score, abstain_below)
        names = list(self.tasks)
        labels = [self.tasks[name].labels for name in names]
        places = zip(answers.task.tolist(), answers.label.tolist(), strict=True)
        found = [None if place < 0 else labels[own][place] for own, place in places]
        return Prediction(
            label_array(found),
            label_array([names[own] for own in answers.task.tolist()]),
            *(column.cpu().numpy() for column in (answers.confidence, answers.variance, answers.task_margin)),
        )

    def answer(
        self, inputs: Any, task: str | None = None, score: str = DEFAULT_SCORE, abstain_below: float = 0.0
    ) -> Answers:
        """The same as tensors: tasks and classes by their places."""
        order = {known.lesson: place for place, known in enumerate(self.tasks.values())}
        index = None if task is None else self._task(task).lesson
        queries = self._shown(inputs)  # refuses, where nothing was learned
        answers = self.answerer.answer(queries, index, score, abstain_below)
        places = torch.tensor([order[lesson] for lesson in sorted(self.answerer.tasks)], device=answers.task.device)
        return answers._replace(task=places[answers.task])

    def logits(self, inputs: Any, task: str) -> Tensor:
        """Calibrated scores of a task's classes, in the order of `tasks[task].labels`: the fast way."""
        queries = self._shown(inputs)  # refuses, where nothing was learned
        return self.answerer.logits(queries, self._task(task).lesson)

    def probabilities(self, inputs: Any, task: str) -> Tensor:
        return self.logits(inputs, task).softmax(-1)

    def accuracy(self, inputs: Any, labels: Any, task: str | None = None) -> float:
        """Percent of inputs answered with their label."""
        _, wanted = _samples(inputs, labels)
        found = self.predict(inputs, task).label.tolist()
        return 100.0 * sum(a == b for a, b in zip(found, wanted, strict=True)) / len(wanted)

    def _task(self, name: str) -> LearnedTask:
        if str(name) not in self.tasks:
            raise KclError(f"task {str(name)!r} was not learned; {nearest(str(name), list(self.tasks))}")
        return self.tasks[str(name)]

    def _shown(self, inputs: Any) -> Tensor:
        """Inputs as the network sees them, on its device."""
        queries = checked(self._as_stored(inputs), self.input_shape or ())
        return self.view.scale(queries.to(self.stack.device))

    def _as_stored(self, inputs: Any) -> Tensor:
        _ = self.stack  # refuses, where nothing was learned
        x = as_tensor(inputs)
        if (x.dtype == torch.uint8) != (self.dtype == torch.uint8):
            kinds = {True: "bytes (uint8), which are divided by 255", False: "numbers, which are used as they are"}
            raise KclError(f"the model learned from {kinds[self.dtype == torch.uint8]}; these inputs are {x.dtype}")
        return x if x.dtype == torch.uint8 else x.float()

    # All of a lesson or nothing

    def _snapshot(self) -> Callable[[], None]:
        """A function that brings the model back to its present state."""
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
    """An array of labels in their own data type; of objects where some are withheld or kinds are mixed."""
    if len({type(value) for value in values}) == 1 and values[0] is not None:
        return np.array(values)
    made = np.empty(len(values), dtype=object)
    made[:] = values
    return made


def _samples(inputs: Any, labels: Any) -> tuple[Tensor, list[Label]]:
    x = as_tensor(inputs)
    y = np.asarray(labels)
    if y.ndim != 1 or x.ndim < 2 or len(x) != len(y):
        raise KclError(f"inputs of shape {tuple(x.shape)} do not go with labels of shape {y.shape}: give one for each")
    if len(y) == 0:
        raise KclError("there are no samples to learn from")
    values = y.tolist()
    kinds = {type(value) for value in values}
    if not kinds <= {str, int, float, bool} or len(kinds) > 1:
        raise KclError(f"labels must be all text or all numbers, not {', '.join(sorted(k.__name__ for k in kinds))}")
    if float in kinds and not np.isfinite(y).all():
        raise KclError("a label is not a finite number")
    return (x if x.dtype == torch.uint8 else x.float()), values


def _standardising(x: Tensor, settings: KclSettings) -> View:
    """Takes out mean and standard deviation of every input feature; a constant one is only centred.

    Without a backbone and without normalisation, inputs are also divided by √d: a kernel's width then means the same
    for any number of features.
    """
    if x.ndim != 2 or x.dtype == torch.uint8:
        raise KclError(f"standardise is for rows of numbers, not for inputs of shape {tuple(x.shape)} and {x.dtype}")
    bare = settings.backbone == "identity" and settings.feature_norm == "none"
    std = x.double().std(0, correction=0)
    # Beside its own size: rounding gives a large constant a spread, and a small unit is none.
    std = torch.where(std > 1e-9 * x.double().abs().amax(0), std, 1.0) * (x.shape[1] ** 0.5 if bare else 1.0)
    return View(None, tuple(x.double().mean(0).tolist()), tuple(std.tolist()))
