"""The tensors of a saved model with coresets.

They are the weights (`model.…`), their average if there is one (`average.…`), and for each task its coreset
(`task.LESSON.kept.…`) and its folded head (`task.LESSON.head.…`).
"""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from kcl.benchmarks.task import View
from kcl.errors import KclError
from kcl.methods.kcl import KernelModel
from kcl.methods.kcl_settings import KclSettings
from kcl.methods.recipes import published_backbone, settings_record
from kcl.methods.ridge_head import Head
from kcl.methods.views import copies_at_test, rotations
from kcl.models.continual_model import ContinualModel
from kcl.models.lessons import LearnedTask, LessonLearning
from kcl.training.state import build_model

_FIRST_EDITION = 2
"""The edition of the settings (`core.settings.setting`) with which the first models were saved."""


def tensors_of(model: ContinualModel) -> dict[str, Tensor]:
    """All tensors of the model, by name."""
    stack = model.stack
    groups: dict[str, dict[str, Tensor]] = {"model": stack.models[0].state_dict()}
    if stack.runs[0].average is not None:
        groups["average"] = stack.average_state(0)
    for task in model.tasks.values():
        groups[f"task.{task.lesson}.kept"] = stack.memory_kept(0, task.lesson)
        groups[f"task.{task.lesson}.head"] = model.answerer.head(task.lesson).tensors()
    return {f"{prefix}.{name}": tensor for prefix, tensors in groups.items() for name, tensor in tensors.items()}


def about(model: ContinualModel) -> dict[str, Any]:
    """What `model.json` says of these heads."""
    backbone = model.settings.backbone if model.module is None else "own"
    return {"settings": model.settings.to_dict(), "backbone": backbone}


def restore(
    model: ContinualModel, about: Mapping[str, Any], file: Any, shape: tuple[int, ...], dtype: torch.dtype, view: View
) -> None:
    """Fill a model from an open safetensors file. Its tasks are known already."""
    model.settings, user_module = _settings(about["settings"]), about["backbone"] == "own"
    if user_module and model.module is None:
        raise KclError("the model was created with your own module: pass it as backbone")
    if model.module is not None and not user_module:
        raise KclError("the model needs no backbone: load it without one")
    tensors = _grouped(file, None if user_module else _model_shapes(model, shape))
    model.begin(shape, dtype, view)
    types = {name: tensor.dtype for name, tensor in model.stack.models[0].state_dict().items()}
    if types != {name: tensor.dtype for name, tensor in tensors["model"].items()}:
        raise ValueError("its weights do not have the data types of its network")
    model.stack.load_run(tensors["model"], tensors["average"])
    model.stack.method_state = {}
    heads, device = {}, model.stack.device
    for name, task in model.tasks.items():
        coreset = _coreset(tensors[f"task.{task.lesson}.kept"], model, task)
        model.stack.kept[task.lesson] = ({name: tensor[None].to(device) for name, tensor in coreset.items()}, view)
        head = tensors[f"task.{task.lesson}.head"]
        if about["format"] == 1:  # which kept temperatures of tasks in `model.json`
            head["temperature"] = torch.tensor(float(about["tasks"][name]["temperature"]))
        head = _head(head, model, task)
        heads[task.lesson] = Head(**{name: tensor.to(device) for name, tensor in head.items()})
    model.answerer.install(heads)


def sizes(about: Mapping[str, Any], file: Any) -> dict[str, int]:
    """Samples and bytes of the coresets, without loading them."""
    floats = {"correction": "soft_targets", "matched": "matched_targets"}
    parts = ["inputs", "targets", *(name for name, setting in floats.items() if about["settings"].get(setting))]
    samples = size = 0
    for lesson, part in itertools.product((task["lesson"] for task in about["tasks"].values()), parts):
        tensor = file.get_slice(f"task.{lesson}.kept.{part}")
        size += math.prod(tensor.get_shape()) * (1 if tensor.get_dtype() == "U8" else 4)
        samples += tensor.get_shape()[0] if part == "inputs" else 0
    return {"coreset_samples": samples, "coreset_bytes": size}


def _settings(saved: Mapping[str, Any]) -> KclSettings:
    """The saved settings. Settings added after the first models may be missing: their defaults do what was done before.
    Any other must be there.
    """
    required = (name for name in KclSettings.names() if KclSettings.field(name).metadata["since"] <= _FIRST_EDITION)
    missing = [name for name in required if name not in saved]
    if missing:
        raise ValueError(f"it lacks the settings {', '.join(missing)}")
    return KclSettings().replace(**settings_record("kcl", dict(saved)))


def _model_shapes(model: ContinualModel, input_shape: tuple[int, ...]) -> dict[str, tuple[int, ...]]:
    """The shapes of the model's weights according to its settings, without allocating them."""
    with torch.device("meta"):
        method = LessonLearning(model.settings, 0)
        network = build_model(method, lambda: published_backbone(input_shape, model.settings), model.seed)
    return {f"model.{name}": tuple(tensor.shape) for name, tensor in network.state_dict().items()}


def _grouped(file: Any, model_shapes: dict[str, tuple[int, ...]] | None) -> defaultdict[str, dict[str, Tensor]]:
    """Tensors by prefix and name, after the shapes of the weights were checked.

    Prefixes: `model`, `average`, `task.LESSON.kept`, `task.LESSON.head`.
    """
    names = list(file.keys())
    if model_shapes is not None:
        shapes = {name: tuple(file.get_slice(name).get_shape()) for name in names if name.startswith("model.")}
        if shapes != model_shapes:
            raise ValueError("its weights do not have the shapes that its settings require")
    tensors: defaultdict[str, dict[str, Tensor]] = defaultdict(dict)
    for full_name in names:
        prefix, _, name = full_name.partition(".")
        if prefix == "task":
            lesson, part, name = name.split(".", 2)
            prefix = f"task.{lesson}.{part}"
        tensors[prefix][name] = file.get_tensor(full_name)
    return tensors


def _coreset(tensors: dict[str, Tensor], model: ContinualModel, task: LearnedTask) -> dict[str, Tensor]:
    """A task's coreset and what was learned with it, checked against the shapes and data types that they must have."""
    inputs, targets = tensors["inputs"], tensors["targets"]
    size = len(inputs), len(task.labels)
    network = model.stack.models[0]
    assert isinstance(network, KernelModel)  # noqa: S101 - what the method builds
    required = {"inputs": ((size[0], *(model.input_shape or ())), model.dtype), "targets": (size, torch.uint8)}
    required |= dict.fromkeys(model.stack.method.trained_state, (size, torch.float32))
    if model.settings.matched_targets:
        turns = rotations(model.settings)
        required |= {"matched": ((size[0], turns, size[1], turns), torch.float32)}
    required |= {name: (tuple(tensor.shape), tensor.dtype) for name, tensor in network.head()._asdict().items()}
    if required != {name: (tuple(tensor.shape), tensor.dtype) for name, tensor in tensors.items()}:
        raise ValueError("the shape or type of a coreset does not match its task and settings")
    if bool((targets.sum(1) != 1).any()) or bool((targets.sum(0).cpu() > torch.tensor(task.seen)).any()):
        raise ValueError("a coreset does not have one class for each sample, or more samples than were seen")
    return tensors


def _head(tensors: dict[str, Tensor], model: ContinualModel, task: LearnedTask) -> dict[str, Tensor]:
    """A task's head (`methods.ridge_head.Head`), checked against the shapes that its coreset and settings require."""
    network = model.stack.models[0]
    assert isinstance(network, KernelModel)  # noqa: S101 - what the method builds
    anchors = copies_at_test(model.settings) * len(model.stack.memory_kept(0, task.lesson)["inputs"])
    width, labels = network.backbone.features, rotations(model.settings) * len(task.labels)
    kernel = model.answerer.method.kernel
    draws, explicit = model.settings.test_draws if kernel.inferred else 1, kernel.explicit
    size = (model.settings.bases if kernel.fourier else width) if explicit else anchors
    required: dict[str, tuple[int, ...]] = {"scale": (), "shift": (), "temperature": (), "usual": (draws, 2)}
    required |= {"weights": (draws, size, labels), "halves": (draws, anchors, size)}
    required |= {"frequencies": (draws, size, width), "phases": (size,)} if kernel.fourier else {}
    required |= {} if explicit else {"anchors": (anchors, width)}
    if model.settings.batch_norm == "coreset":
        norms = [module for module in network.backbone.modules() if isinstance(module, nn.BatchNorm2d)]
        required |= {"moments": (2 * sum(norm.num_features for norm in norms),)}
    if model.settings.shared_metric:
        required |= {"metric": (width, width)}
    shapes = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    if shapes != required or any(tensor.dtype != torch.float32 for tensor in tensors.values()):
        raise ValueError("the shape of a head does not match its coreset and settings")
    if not tensors["temperature"] > 0.0:
        raise ValueError("the temperature of a head is not positive")
    return tensors
