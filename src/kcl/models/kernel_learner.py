"""Kernel continual learning from Python: one learner, one task after another."""

from __future__ import annotations

import copy
from functools import partial
from typing import Any, overload

import torch
from torch import Tensor, nn

from kcl.benchmarks.task import Stream, Task, View
from kcl.errors import KclError
from kcl.methods.kcl import KernelContinualLearning
from kcl.methods.kcl_settings import KclSettings
from kcl.methods.recipes import published_backbone
from kcl.methods.strong_recipe import recipe_settings
from kcl.models.continual_model import ContinualModel, LearnedTask, Prediction
from kcl.nets.backbone import Backbone, ModuleBackbone
from kcl.training.single_run import OnStep, Run, answers


class KernelContinualLearner:
    """Learns the tasks of a stream in turn; answers for every task learned so far.

    `stream` is a benchmark or an `ArrayStream` of your own arrays. `backbone` may be any module that gives one row
    of features per input, which is copied, or the name of one (`kcl list backbones`). Every further keyword is a
    setting (`kcl list settings`); the defaults, of `kernel` too, are the ones published for the stream, or those of
    another `recipe`; of a module of your own it asks neither features of several stages nor statistics of BatchNorm.
    """

    def __init__(
        self,
        stream: Stream,
        kernel: str | None = None,
        seed: int = 0,
        backbone: nn.Module | str | None = None,
        device: str | torch.device = "cpu",
        recipe: str = "paper",
        **settings: Any,
    ) -> None:
        if stream.recipe is None and recipe != "paper":
            raise KclError(f"there is no recipe {recipe!r} for a stream of your own; give its settings one by one")
        published = recipe_settings(recipe, stream.recipe, "kcl") if stream.recipe else KclSettings()
        if isinstance(backbone, str):
            published, backbone = published.replace(backbone=backbone), None
        elif backbone is not None:
            published = _possible(published, backbone)
        self.stream, self._given = stream, backbone
        self.settings = published.replace(kernel=published.kernel if kernel is None else kernel, **settings)
        self._asked: tuple[tuple[int, int], ContinualModel] | None = None
        method = KernelContinualLearning(self.settings, len(stream.class_labels))
        self._run = Run(method, partial(self._make_backbone, backbone), seed, device)

    def _make_backbone(self, given: nn.Module | None) -> Backbone:
        if given is None:
            return published_backbone(self.stream.input_shape, self.settings)
        return copy.deepcopy(given) if isinstance(given, Backbone) else ModuleBackbone(given, self.stream.input_shape)

    @property
    def model(self) -> nn.Module:
        """The network itself."""
        return self._run.model

    @property
    def memory_use(self) -> dict[str, int]:
        """Samples kept so far and the bytes they take."""
        return self._run.memory_use()

    def learn(self, task: Task, on_step: OnStep = lambda _: None) -> None:
        """Learn one task. Earlier tasks are not looked at again."""
        self._run.learn(task, on_step)
        if self._run.diverged:
            raise KclError(
                f"the loss of task {task.index} stopped being finite; the weights are those before that step; "
                "a lower lr may help"
            )

    def accuracy(self, task: Task) -> float:
        """Percent of a learned task's test samples answered correctly, with the weights as they are now."""
        return self._run.accuracy(task)

    def logits(self, inputs: Any, task: Task | int) -> Tensor:
        """Scores of the task's classes, in the order of `task.classes`, for inputs as the stream stores them."""
        queries = torch.as_tensor(inputs)
        if tuple(queries.shape[1:]) != tuple(self.stream.input_shape) or queries.ndim < 2:
            raise KclError(
                f"inputs have shape {tuple(queries.shape)}; expected {tuple(self.stream.input_shape)} for each query, "
                "one after another along the first dimension"
            )
        if queries.dtype != torch.uint8 and not bool(torch.isfinite(queries.float()).all()):
            raise KclError("inputs contain values that are not finite in single precision")
        return self._run.logits(queries, task)

    @overload
    def predict(self, inputs: Any, task: Task | int) -> Tensor: ...

    @overload
    def predict(self, inputs: Any, task: None = None) -> Prediction: ...

    def predict(self, inputs: Any, task: Task | int | None = None) -> Tensor | Prediction:
        """The label of each input, among the classes of a learned task.

        Without a task: task, label and how sure that is, for inputs whose pixels are moved already where the stream's
        tasks move them (`task.view.move`); see `inference.Answerer.answer`.
        """
        if task is None:
            state = self._run.version, len(self._run.kept)
            if self._asked is None or self._asked[0] != state:
                self._asked = state, self.as_model()
            return self._asked[1].predict(inputs)
        best = answers(self.logits(inputs, task)).cpu()
        if bool((best < 0).any()):
            raise KclError("the scores of some inputs are not finite: the kernel is beyond single precision here")
        return torch.tensor([self.stream.class_labels[place] for place in self._run.classes(task)])[best]

    def as_model(self) -> ContinualModel:
        """What was learned as a model that can be saved, exported and asked without naming a task; tasks are named by
        their numbers. It shares its weights with this learner; once saved and loaded it can be taught more.
        """
        kept = self._run.kept
        views = {(own.view.mean, own.view.std) for own in kept.values()}
        if len(views) != 1:
            raise KclError("one model needs tasks learned already, all scaled in the same way")
        dtype = next(iter(kept.values())).memory["inputs"].dtype
        model = ContinualModel(self._run.seed, self._given, self._run.device)
        model.settings = self.settings
        model.adopt(self._run, self.stream.input_shape, dtype, View(None, *views.pop()))
        for index, own in sorted(kept.items()):
            labels = tuple(self.stream.class_labels[place] for place in own.classes)
            shown = own.memory["targets"].long().sum(0).tolist()
            model.tasks[str(index)] = LearnedTask(index, labels, tuple(shown))
            model.history.append({"task": str(index), "classes": len(labels)})
        return model


def _possible(recipe: KclSettings, module: nn.Module) -> KclSettings:
    """A recipe with as many stages as a module gives features of, and without its statistics where it gathers none."""
    own = module if isinstance(module, Backbone) else None
    recipe = recipe.replace(feature_stages=max(1, len(own.parts) if own else 1))
    return recipe if own and own.gathers else recipe.replace(batch_norm="running")
