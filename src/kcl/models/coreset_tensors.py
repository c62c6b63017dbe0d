"""The tensors of a saved model with coresets.

They are the weights (`model.…`), their average if there is one (`average.…`), and for each task its coreset
(`task.LESSON.kept.…`) and its folded head (`task.LESSON.head.…`).
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from kcl.benchmarks.task import View
from kcl.errors import KclError
from kcl.methods.kcl_settings import KclSettings
from kcl.methods.kernel_model import KernelModel
from kcl.methods.recipes import make_backbone, settings_record
from kcl.methods.ridge_head import Head
from kcl.methods.views import copies_at_test, rotations
from kcl.models.continual_model import ContinualModel
from kcl.models.lessons import LearnedTask, LessonLearning, Tasks
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


def required(
    model: ContinualModel, about: Mapping[str, Any], tasks: Tasks, tensors: dict[str, Tensor]
) -> dict[str, Tensor]:
    """Tensors of the names, shapes and types that the file must have, of which nothing is allocated."""
    model.settings, user_module = _settings(about["settings"]), about["backbone"] == "own"
    if user_module and model.module is None:
        raise KclError("the model was created with your own module: pass it as backbone")
    if model.module is not None and not user_module:
        raise KclError("the model needs no backbone: load it without one")
    shape, method = model.input_shape or (), LessonLearning(model.settings, 0)
    with torch.device("cpu" if user_module else "meta"):
        network = build_model(method, partial(make_backbone, shape, model.settings, model.module), model.seed)
    assert isinstance(network, KernelModel)  # noqa: S101 - what the method builds
    expected = {f"model.{name}": tensor for name, tensor in network.state_dict().items()}
    if model.settings.weight_average:
        expected |= {f"average.{name}": tensor for name, tensor in expected.items()}
        expected["average.updates"] = _empty(1, dtype=torch.int64)
    for name, task in tasks.items():
        kept, head = f"task.{task.lesson}.kept", f"task.{task.lesson}.head"
        if about["format"] == 1:  # which kept temperatures of tasks in `model.json`
            tensors[f"{head}.temperature"] = torch.tensor(float(about["tasks"][name]["temperature"]))
        size, classes = len(tensors[f"{kept}.inputs"]), len(task.labels)
        expected[f"{kept}.inputs"] = _empty(size, *shape, dtype=model.dtype)
        expected[f"{kept}.targets"] = _empty(size, classes, dtype=torch.uint8)
        if model.settings.soft_targets:
            expected[f"{kept}.correction"] = _empty(size, classes)
        if model.settings.matched_targets:
            turns = rotations(model.settings)
            expected[f"{kept}.matched"] = _empty(size, turns, classes, turns)
        expected |= {f"{kept}.{name}": tensor for name, tensor in network.head()._asdict().items()}
        expected |= {
            f"{head}.{name}": _empty(*sizes) for name, sizes in _head_sizes(network, method, task, size).items()
        }
    return expected


def restore(model: ContinualModel, _: Mapping[str, Any], tasks: Tasks, tensors: dict[str, Tensor], view: View) -> None:
    """Fill a model with the required tensors."""
    groups: dict[str, dict[str, Tensor]] = {"average": {}}
    for name, tensor in tensors.items():
        parts = name.split(".", 3 if name.startswith("task.") else 1)
        groups.setdefault(".".join(parts[:-1]), {})[parts[-1]] = tensor.to(model.device)
    model.begin(view)
    model.tasks.update(tasks)
    model.stack.load_run(groups["model"], groups["average"])
    model.stack.method_state = {}
    heads = {}
    for task in model.tasks.values():
        coreset, head = (groups[f"task.{task.lesson}.{part}"] for part in ("kept", "head"))
        counts = coreset["targets"].sum(0).tolist()
        if bool((coreset["targets"].sum(1) != 1).any()) or any(map(int.__gt__, counts, task.seen)):
            raise ValueError("a coreset does not have one class for each sample, or more samples than were seen")
        if not head["temperature"] > 0.0:
            raise ValueError("the temperature of a head is not positive")
        model.stack.kept[task.lesson] = ({name: tensor[None] for name, tensor in coreset.items()}, view)
        heads[task.lesson] = Head(**head)
    model.answerer.install(heads)


def sizes(tensors: dict[str, Tensor]) -> dict[str, int]:
    """Samples and bytes of the coresets."""
    kept = {name: tensor for name, tensor in tensors.items() if ".kept." in name and tensor.ndim > 0}
    samples = sum(len(tensor) for name, tensor in kept.items() if name.endswith(".inputs"))
    return {"coreset_samples": samples, "coreset_bytes": sum(tensor.nbytes for tensor in kept.values())}


def _empty(*sizes: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.empty(sizes, dtype=dtype, device="meta")


def _settings(saved: Mapping[str, Any]) -> KclSettings:
    """The saved settings. Settings added after the first models may be missing: their defaults do what was done before.
    Any other must be there.
    """
    names = (name for name in KclSettings.names() if KclSettings.field(name).metadata["since"] <= _FIRST_EDITION)
    missing = [name for name in names if name not in saved]
    if missing:
        raise ValueError(f"it lacks the settings {', '.join(missing)}")
    return KclSettings().replace(**settings_record("kcl", dict(saved)))


def _head_sizes(
    network: KernelModel, method: LessonLearning, task: LearnedTask, coreset_size: int
) -> dict[str, tuple[int, ...]]:
    """The shapes of the tensors of a task's head (`methods.ridge_head.Head`), by the settings."""
    settings, kernel = method.settings, method.kernel
    anchors, labels = copies_at_test(settings) * coreset_size, rotations(settings) * len(task.labels)
    width, draws = network.backbone.features, settings.test_draws if kernel.inferred else 1
    size = (settings.bases if kernel.fourier else width) if kernel.explicit else anchors
    sizes: dict[str, tuple[int, ...]] = {"scale": (), "shift": (), "temperature": (), "usual": (draws, 2)}
    sizes |= {"weights": (draws, size, labels), "halves": (draws, anchors, size)}
    sizes |= {"frequencies": (draws, size, width), "phases": (size,)} if kernel.fourier else {}
    sizes |= {} if kernel.explicit else {"anchors": (anchors, width)}
    if settings.batch_norm == "coreset":
        norms = [module for module in network.backbone.modules() if isinstance(module, nn.BatchNorm2d)]
        sizes |= {"moments": (2 * sum(norm.num_features for norm in norms),)}
    if settings.shared_metric:
        sizes |= {"metric": (width, width)}
    return sizes
