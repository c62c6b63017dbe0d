"""Kernel continual learning from Python: one learner, one task after another."""

from __future__ import annotations

import copy
from typing import Any, overload

import torch
from torch import Tensor, nn

from kcl.benchmarks.task import Stream, Task, View
from kcl.errors import KclError
from kcl.methods.kcl import KernelContinualLearning, KernelModel
from kcl.methods.kcl_settings import KclSettings
from kcl.methods.recipes import published_backbone
from kcl.methods.strong_recipe import recipe_settings
from kcl.models.continual_model import ContinualModel, LearnedTask, Prediction
from kcl.models.inference import Answerer, KnownTask, checked
from kcl.nets.backbone import Backbone, ModuleBackbone
from kcl.training.evaluation import predicted
from kcl.training.stack import RunStack
from kcl.training.step_progress import OnStep


class KernelContinualLearner:
    """Learns the tasks of a stream in turn; answers for every task learned so far.

    `stream` is a benchmark or an `ArrayStream` of your own arrays. `backbone` is the name of one (`kcl list backbones`)
    or any module that gives one row of features per input; the module is copied. Every further keyword is a setting
    (`kcl list settings`). The defaults, `kernel` included, are those published for the stream, or those of another
    `recipe`; a module of your own is not asked for features of several stages or for BatchNorm statistics.
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
        self.stream, self._module = stream, backbone
        self.settings = published.replace(kernel=published.kernel if kernel is None else kernel, **settings)
        method = KernelContinualLearning(self.settings, len(stream.class_labels))
        self._stack = RunStack([method], [self._make_backbone], [seed], device, precision="float32", plain=True)
        model = self._stack.model_at_test(0)
        assert isinstance(model, KernelModel)  # noqa: S101 - what the method builds
        self._answerer, self._answers_version = Answerer(method, model, seed), -1

    def _make_backbone(self) -> Backbone:
        module = self._module
        if module is None:
            return published_backbone(self.stream.input_shape, self.settings)
        return (
            copy.deepcopy(module) if isinstance(module, Backbone) else ModuleBackbone(module, self.stream.input_shape)
        )

    @property
    def model(self) -> nn.Module:
        """The network itself."""
        return self._stack.models[0]

    @property
    def memory_use(self) -> dict[str, int]:
        """Samples kept so far and the bytes they take."""
        return self._stack.memory_use()[0]

    def learn(self, task: Task, on_step: OnStep = lambda _: None) -> None:
        """Learn one task. Earlier tasks are not looked at again."""
        self._stack.learn([task], on_step)
        if self._stack.diverged[0]:
            raise KclError(
                f"the loss of task {task.index} stopped being finite; the weights are those before that step; "
                "a lower lr may help"
            )

    def accuracy(self, task: Task) -> float:
        """Percent of a learned task's test samples answered correctly, with the present weights."""
        self._index(task)
        return self._stack.accuracy([task])[0]

    def logits(self, inputs: Any, task: Task | int) -> Tensor:
        """Scores of the task's classes, in the order of `task.classes`, for inputs as the stream stores them."""
        index = self._index(task)
        queries = checked(inputs, self.stream.input_shape).to(self._stack.device)
        self._refresh()
        return self._answerer.logits(self._stack.kept[index][1](queries), index)

    def _index(self, task: Task | int) -> int:
        index = task if isinstance(task, int) else task.index
        if index not in self._stack.kept:
            raise KclError(
                f"task {index} was not learned yet, so it has no classifier; learned: {sorted(self._stack.kept)}"
            )
        return index

    def _refresh(self) -> None:
        """Let the answerer know what was learned since it was last asked."""
        if self._answers_version != self._stack.version:
            kept = {index: (self._stack.memory_kept(0, index), view) for index, (_, view) in self._stack.kept.items()}
            self._answerer.tasks = {index: KnownTask(memory, View(None, view.mean, view.std))
                                    for index, (memory, view) in kept.items()}  # fmt: skip
            self._answerer.weights_changed()
            self._answers_version = self._stack.version

    @overload
    def predict(self, inputs: Any, task: Task | int) -> Tensor: ...

    @overload
    def predict(self, inputs: Any, task: None = None) -> Prediction: ...

    def predict(self, inputs: Any, task: Task | int | None = None) -> Tensor | Prediction:
        """The label of each input, among the classes of a learned task.

        Without a task: task, label and confidence, for inputs whose pixels are moved already where the stream's tasks
        move them (`task.view.move`); see `inference.Answerer.answer`.
        """
        if task is None:
            return self.as_model().predict(inputs)
        best = predicted(self.logits(inputs, task)).cpu()
        if bool((best < 0).any()):
            raise KclError("the scores of some inputs are not finite: the kernel is beyond single precision here")
        return torch.tensor(self._labels(self._index(task)))[best]

    def _labels(self, index: int) -> tuple[int, ...]:
        return tuple(self.stream.class_labels[place] for place in self.stream[index].classes)

    def as_model(self) -> ContinualModel:
        """What was learned as a model that can be saved, exported and asked without naming a task; tasks are named by
        their numbers. It shares its weights with this learner; once saved and loaded it can be taught more.
        """
        kept = self._stack.kept
        scalings = {(view.mean, view.std) for _, view in kept.values()}
        if len(scalings) != 1:
            raise KclError("one model needs tasks that were learned already and are all scaled in the same way")
        dtype = next(iter(kept.values()))[0]["inputs"].dtype
        model = ContinualModel(self._stack.seeds[0], self._module, self._stack.device)
        model.settings = self.settings
        for index in sorted(kept):
            labels = self._labels(index)
            shown = self._stack.memory_kept(0, index)["targets"].long().sum(0).tolist()
            model.tasks[str(index)] = LearnedTask(index, labels, tuple(shown))
            model.history.append({"task": str(index), "classes": len(labels)})
        self._refresh()
        model.adopt(self._stack, self.stream.input_shape, dtype, View(None, *scalings.pop()), self._answerer)
        return model


def _possible(recipe: KclSettings, module: nn.Module) -> KclSettings:
    """A recipe with as many feature stages as a module has, and without BatchNorm statistics if it gathers none."""
    backbone = module if isinstance(module, Backbone) else None
    recipe = recipe.replace(feature_stages=max(1, len(backbone.parts) if backbone else 1))
    return recipe if backbone and backbone.gathers else recipe.replace(batch_norm="running")
