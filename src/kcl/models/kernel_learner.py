"""Kernel continual learning on a stream of tasks, from Python."""

from __future__ import annotations

from typing import Any, overload

import torch
from torch import Tensor, nn

from kcl.benchmarks.task import Stream, Task, View
from kcl.errors import KclError
from kcl.methods.kcl import KernelContinualLearning
from kcl.methods.kcl_settings import KclSettings
from kcl.methods.strong_recipe import recipe_settings
from kcl.models.continual_model import ContinualModel
from kcl.models.coreset_heads import CoresetHeads
from kcl.models.inference import Answerer, name_or_module, start_run
from kcl.models.inputs import as_tensor, checked
from kcl.models.learned_model import Prediction
from kcl.models.lessons import LearnedTask
from kcl.nets.backbone import Backbone
from kcl.training.evaluation import predicted
from kcl.training.step_progress import OnStep


class KernelContinualLearner:
    """Learns the tasks of a stream in turn and predicts for every task learned so far.

    Parameters
    ----------
    stream : Stream
        A benchmark, or an `ArrayStream` of your own arrays.
    kernel : str, optional
        A name (`kcl list kernels`); by default the recipe's.
    seed : int
        Fixes all randomness of the run. The stream has a seed of its own.
    backbone : str or torch.nn.Module, optional
        A name (`kcl list backbones`), or your own module from n inputs to (n, d) features, which is copied. It need not
        have the feature stages and BatchNorm statistics that a recipe uses.
    device : str or torch.device
        Where it computes.
    recipe : "paper", "strong" or "light"
        The settings to start from: those published for the stream, or those of another recipe (`kcl list recipes`).
    **settings
        Settings to change (`kcl list settings`).
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
            raise KclError(
                f"there is no recipe {recipe!r} for a stream of your own; pass its settings one by one (kcl run "
                f"BENCHMARK --recipe {recipe} --show-settings prints those of a benchmark like it)"
            )
        published = recipe_settings(recipe, stream.recipe, "kcl") if stream.recipe else KclSettings()
        named, module = name_or_module(backbone)
        published = published.replace(**named) if module is None else _supported(published, module)
        self.stream, self._module = stream, module
        self.settings = published.replace(kernel=published.kernel if kernel is None else kernel, **settings)
        method = KernelContinualLearning(self.settings, len(stream.class_labels))
        self._stack = start_run(method, stream.input_shape, module, seed, device)
        self._answerer = Answerer(self._stack)
        self._model: ContinualModel | None = None  # for predictions without a task, until another one is learned

    @property
    def model(self) -> nn.Module:
        """The network."""
        return self._stack.models[0]

    @property
    def memory_use(self) -> dict[str, int]:
        """Samples kept so far, and their bytes."""
        return self._stack.memory_use()[0]

    def learn(self, task: Task, on_step: OnStep = lambda _: None) -> None:
        """Learn one task. The samples of earlier tasks are not used."""
        self._stack.learn([task], on_step)
        if self._stack.diverged[0]:
            raise KclError(
                f"the loss of task {task.index} stopped being finite; the weights are those before that step. "
                "Try a lower lr"
            )

    def accuracy(self, task: Task) -> float:
        """Percent of a learned task's test samples classified correctly with the current weights."""
        self._index(task)
        return self._stack.accuracy([task])[0]

    def logits(self, inputs: Any, task: Task | int) -> Tensor:
        """Scores of the task's classes, in the order of `task.classes`, for inputs as the stream stores them."""
        index = self._index(task)
        queries = checked(as_tensor(inputs), self.stream.input_shape).to(self._stack.device)
        return self._answerer.logits(self._stack.kept[index][1](queries), index)

    def _index(self, task: Task | int) -> int:
        index = task if isinstance(task, int) else task.index
        if index not in self._stack.kept:
            raise KclError(
                f"task {index} was not learned yet; learned tasks: {sorted(self._stack.kept)}. Call learn with it first"
            )
        return index

    @overload
    def predict(self, inputs: Any, task: Task | int) -> Tensor: ...

    @overload
    def predict(self, inputs: Any, task: None = None) -> Prediction: ...

    def predict(self, inputs: Any, task: Task | int | None = None) -> Tensor | Prediction:
        """The label of each input, among the classes of a learned task.

        Without a task: task, label and confidence (`inference.Answerer.answer`). Where the stream's tasks permute or
        rotate pixels, apply `task.view.move` to the inputs first.
        """
        if task is None:
            if self._model is None or len(self._model.tasks) != len(self._stack.kept):
                self._model = self.as_model()
            return self._model.predict(inputs)
        best = predicted(self.logits(inputs, task)).cpu()
        if bool((best < 0).any()):
            raise KclError("the scores of some inputs are not finite: the kernel exceeds single precision there")
        return torch.tensor(self._labels(self._index(task)))[best]

    def _labels(self, index: int) -> tuple[int, ...]:
        return tuple(self.stream.class_labels[position] for position in self.stream[index].classes)

    def as_model(self) -> ContinualModel:
        """The learned tasks as a model that can be saved and exported, with calibrated probabilities. Task names are
        the task numbers.

        The model shares its weights with this learner. To teach it more tasks, save it and load it again. It takes
        inputs as the network sees them: where the stream's tasks permute or rotate pixels, after `task.view.move`.
        """
        kept = self._stack.kept
        scalings = {(view.mean, view.std) for _, view in kept.values()}
        if not kept:
            raise KclError("a model needs at least one learned task: call learn first")
        if len(scalings) > 1:
            raise KclError("the tasks of a model must be scaled in the same way; these have different mean and std")
        model, tasks = ContinualModel(self._stack.seeds[0], self._module, self._stack.device), {}
        for index in sorted(kept):
            labels = self._labels(index)
            seen = self._stack.memory_kept(0, index)["targets"].long().sum(0).tolist()
            tasks[str(index)] = LearnedTask(index, labels, tuple(seen))
            model.history.append({"task": str(index), "classes": len(labels)})
        model.settings, model.input_shape = self.settings, self.stream.input_shape
        model.dtype = next(iter(kept.values()))[0]["inputs"].dtype
        model._heads = CoresetHeads(self._stack, View(None, *scalings.pop()), tasks)
        return model


def _supported(recipe: KclSettings, module: nn.Module) -> KclSettings:
    """The recipe with the module's number of feature stages, and with coreset BatchNorm only if it supports that."""
    backbone = module if isinstance(module, Backbone) else None
    recipe = recipe.replace(feature_stages=max(1, len(backbone.parts) if backbone else 1))
    return recipe if backbone and backbone.gathers else recipe.replace(batch_norm="running")
