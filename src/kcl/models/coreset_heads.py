"""A network that learns, with a coreset and a kernel ridge classifier for every task: the paper's method, lesson by
lesson.
"""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from kcl.benchmarks.task import Examples, View
from kcl.errors import KclError
from kcl.methods.kernel_model import KernelModel
from kcl.models.inference import DEFAULT_SCORE, JOINT, Answerer, Answers, start_run
from kcl.models.joint_head import JointAnswers
from kcl.models.lessons import LearnedTask, Lesson, LessonLearning, Samples, choose_coreset
from kcl.training.stack import RunStack
from kcl.training.step_progress import OnStep

CAUTION = (1.0, 0.1, 0.01)
"""Factors of the learning rate with which a task is tried until its loss stays finite."""


class CoresetHeads:
    """What a `ContinualModel` asks of its heads, with a run of kernel continual learning behind it."""

    def __init__(self, stack: RunStack, view: View, tasks: dict[str, LearnedTask]) -> None:
        self.stack, self.view, self.tasks = stack, view, tasks
        self.answerer = Answerer(stack, calibrated=True)
        self._joint_version = -1

    @property
    def device(self) -> torch.device:
        return self.stack.device

    def learn(self, samples: Samples, task: LearnedTask, rng: np.random.Generator, on_step: OnStep) -> dict[str, Any]:
        """Learn more of a task, or a new one; what is to be said of the lesson. `task`: as it is afterwards."""
        stack, method, (name, x, y, weights) = self.stack, self.stack.method, samples
        assert isinstance(method, LessonLearning)  # noqa: S101 - `fork` refuses others
        if weights is not None and bool((weights != weights[0]).any()):
            raise KclError("unequal sample weights need a streaming head: a network learns every sample once")
        if len(task.labels) < 2:
            raise KclError(f"task {name!r} has only one class, {task.labels[0]!r}; it needs at least two")
        old, old_size = self.tasks.get(name), 0
        seen = [*old.seen] if old else []
        if old:
            memory = stack.memory_kept(0, old.lesson)
            old_size = len(memory["inputs"])
            x = torch.cat([memory["inputs"].cpu(), x])
            y = torch.cat([memory["targets"].argmax(-1).cpu(), y])
        seen += [0] * (len(task.labels) - len(seen))
        coreset, learned = choose_coreset(y.numpy(), old_size, seen, method.settings.coreset_size_per_class, rng)
        train, no_test = Examples(x, torch.arange(len(y)), y), Examples(x[:0], torch.arange(0), y[:0])
        lesson = Lesson(task.lesson, train, no_test, tuple(range(len(task.labels))), self.view, coreset, learned)
        notes = self._train(lesson, name, on_step)
        if old:
            del stack.kept[old.lesson]
        self.tasks[name] = task
        return notes

    def _train(self, lesson: Lesson, name: str, on_step: OnStep) -> dict[str, Any]:
        """Train on a lesson; if the loss stops being finite, go back and try again with a smaller learning rate."""
        stack, method, settings = self.stack, self.stack.method, self.stack.method.settings
        for factor in CAUTION:
            restore = stack.snapshot()
            method.settings = settings.replace(lr=factor * settings.lr, muon_lr=factor * settings.muon_lr)
            try:
                stack.learn([lesson], on_step)
            finally:
                method.settings = settings
            if not stack.diverged[0]:
                return {} if factor == 1.0 else {"lr_factor": factor}
            restore()
        raise KclError(
            f"the loss of task {name!r} stopped being finite at every learning rate tried, down to "
            f"{CAUTION[-1] * settings.lr:g}, so it was not learned and nothing was lost; look for extreme values in "
            "its inputs, or start a new model with a smaller lr or another kernel"
        )

    def answer(self, queries: Tensor, task: str | None, score: str = JOINT, abstain_below: float = 0.0) -> Answers:
        if task is None and score == JOINT and len(self.tasks) > 1:
            return self.joint().answer(self.answerer.batches(queries), abstain_below)
        score = DEFAULT_SCORE if score == JOINT else score
        return self.answerer.answer(queries, None if task is None else self.tasks[task].lesson, score, abstain_below)

    def logits(self, queries: Tensor, task: str | None) -> Tensor:
        """Calibrated scores of a task's classes; without a task, those of all classes, each once."""
        if task is None:
            return self.joint().logits(self.answerer.batches(queries))
        return self.answerer.logits(queries, self.tasks[task].lesson)

    def joint(self) -> JointAnswers:
        """The classifier over all classes, made when it is first needed after the weights have changed."""
        if self._joint_version != self.stack.version:
            self._joint_head, self._joint_version = JointAnswers(self.answerer, self.tasks), self.stack.version
        return self._joint_head

    def forget(self, *_: Any) -> Any:
        raise KclError(
            "the network of this model was trained on the data, so that dropping a head would not forget them: go back "
            "to the version from before they were learned, and learn what came later again; a streaming head "
            "(head='streaming') can forget exactly"
        )

    def fork(self) -> CoresetHeads:
        """Heads of their own for a lesson, which leaves these as they are: all that a lesson changes is copied."""
        old = self.stack
        if not isinstance(old.method, LessonLearning):
            raise KclError("this model shares its weights with a learner; to teach it more, save it and load it again")
        method, backbone = LessonLearning(old.method.settings, 0), cast(KernelModel, old.models[0]).backbone
        stack = start_run(method, (), backbone, old.seeds[0], old.device)
        stack.state.load({"stack": old.state.saved()})
        stack.kept, state = dict(old.kept), old.method_state
        stack.method_state = None if state is None else {name: tensor.clone() for name, tensor in state.items()}
        stack.weights_changed()
        return CoresetHeads(stack, self.view, dict(self.tasks))
