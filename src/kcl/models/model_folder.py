"""A model on disk: a folder with `model.json` and `tensors.safetensors`. A failed save leaves no folder behind.

`model.json` holds all settings, so that a model does not depend on the defaults of the version that reads it, the tasks
with their classes, the history of lessons, and the SHA-256 of the tensor file. The tensors are the weights (`model.…`),
their average if there is one (`average.…`), and for each task its coreset (`task.LESSON.kept.…`) and its folded head
(`task.LESSON.head.…`). Nothing is pickled. The code of a user's own backbone module cannot be saved, only its weights:
pass the module again when loading.
"""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import math
import shutil
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import kcl
from kcl.benchmarks.task import View
from kcl.core.files import read_json, write_json, write_whole
from kcl.errors import KclError
from kcl.methods.kcl import KernelModel
from kcl.methods.kcl_settings import KclSettings
from kcl.methods.recipes import published_backbone, settings_record
from kcl.methods.ridge_head import Head
from kcl.methods.views import copies_at_test, rotations
from kcl.models.continual_model import ContinualModel, LearnedTask
from kcl.models.lessons import LessonLearning
from kcl.training.state import build_model

FORMAT = 1
ABOUT, TENSORS = "model.json", "tensors.safetensors"
_HELD_OUT = ("held_out", "held_out_accuracy")
"""History entries of a lesson with held-out samples."""
_FIRST_EDITION = 2
"""The edition of the settings (`core.settings.setting`) with which the first models were saved."""
_TYPES = {"uint8": torch.uint8, "float32": torch.float32}


def save_model(model: ContinualModel, folder: str | Path) -> Path:
    """Write a model to a new folder. The folder gets its name only when it is complete and on disk."""
    from safetensors.torch import save

    folder = Path(folder)
    if folder.exists():
        raise KclError(f"{folder} exists already; choose a new folder")
    tensors = save(_tensors(model), metadata={"format": f"kcl model {FORMAT}"})
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        draft = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
        try:
            write_whole(draft / TENSORS, tensors)
            write_json(draft / ABOUT, _about(model) | {"sha256": hashlib.sha256(tensors).hexdigest()})
            draft.chmod(0o755)
            draft.rename(folder)
        except BaseException:
            shutil.rmtree(draft, ignore_errors=True)
            raise
    except OSError as error:
        raise KclError(f"the model was not saved to {folder}: {error.strerror or error}") from None
    return folder


def load_model(
    folder: str | Path, backbone: nn.Module | None = None, device: str | torch.device = "cpu"
) -> ContinualModel:
    """Load the model in a folder, or the newest version in it. The model can predict and go on learning.

    If the model was created with a `backbone` module, pass that module again.
    """
    folder = newest(folder)
    about = read_about(folder)
    with _as_kcl_error(folder):
        model = ContinualModel(about["seed"], backbone, device, about["standardise"], about["held_out_share"])
        model.settings = _settings(about["settings"])
        user_module = about["backbone"] == "own"
        if user_module and backbone is None:
            raise KclError(f"the model in {folder} was created with your own module: pass it as backbone")
        if backbone is not None and not user_module:
            raise KclError(f"the model in {folder} needs no backbone: load it without one")
        view = View(None, *(None if part is None else tuple(map(float, part)) for part in about["view"]))
        shape = tuple(int(size) for size in about["input_shape"])
        model_shapes = None if user_module else _model_shapes(model, shape)
        tensors = _read(folder / TENSORS, about["sha256"], model_shapes)
        model.begin(shape, _TYPES[about["dtype"]], view)
        model.stack.load_run(tensors["model"], tensors["average"])
        model.stack.method_state = {}
        model.tasks = {name: _task(entry) for name, entry in about["tasks"].items()}
        model.history, model.columns = list(about["history"]), tuple(about["columns"])
        heads = {}
        for lesson, task in ((task.lesson, task) for task in model.tasks.values()):
            coreset = _coreset(tensors[f"task.{lesson}.kept"], model, task)
            model.stack.kept[lesson] = ({name: tensor[None].to(device) for name, tensor in coreset.items()}, view)
            head = _head(tensors[f"task.{lesson}.head"], model, task)
            heads[lesson] = Head(**{name: tensor.to(device) for name, tensor in head.items()})
        model.answerer.temperatures = {task.lesson: task.temperature for task in model.tasks.values()}
        model.answerer.install(heads)
    return model


def read_about(folder: Path) -> dict[str, Any]:
    """Read and check `model.json`."""
    if not (folder / ABOUT).is_file():
        raise KclError(f"{folder} holds no model: it has no {ABOUT}")
    about = read_json(folder / ABOUT)
    version = about.get("format") if isinstance(about, dict) else None
    if version != FORMAT:
        raise KclError(f"{folder} has model format {str(version)[:40]!r}; this version of kcl reads format {FORMAT}")
    with _as_kcl_error(folder):
        _check(about)
    return about


def describe(folder: Path) -> dict[str, Any]:
    """The content of `model.json` and the sizes of coresets and files, without loading the model."""
    from safetensors import SafetensorError, safe_open

    about = read_about(folder)
    with _as_kcl_error(folder):
        parts = ("inputs", "targets", *(("correction",) if about["settings"].get("soft_targets") else ()))
        samples = size = 0
        try:
            with safe_open(folder / TENSORS, framework="pt") as file:
                for lesson, part in itertools.product((task["lesson"] for task in about["tasks"].values()), parts):
                    tensor = file.get_slice(f"task.{lesson}.kept.{part}")
                    size += math.prod(tensor.get_shape()) * (1 if tensor.get_dtype() == "U8" else 4)
                    samples += tensor.get_shape()[0] if part == "inputs" else 0
        except SafetensorError as error:
            raise ValueError(f"{TENSORS} cannot be read ({error})") from None
        total = sum((folder / name).stat().st_size for name in (ABOUT, TENSORS))
        return about | {"coreset_samples": samples, "coreset_bytes": size, "bytes": total}


# Versions of a model


def newest(folder: str | Path) -> Path:
    """The newest version of a model: the folder itself if it holds one, else the subfolder with the highest number."""
    folder = Path(folder)
    if (folder / ABOUT).is_file():
        return folder
    versions = _versions(folder)
    if not versions:
        raise KclError(f"{folder} holds no model: expected {ABOUT} in it, or in a numbered folder such as 0001")
    return folder / versions[-1]


def next_version(folder: str | Path) -> Path:
    """The folder for the next version."""
    folder = Path(folder)
    if (folder / ABOUT).is_file():
        raise KclError(f"{folder} is a single version of a model; give the folder that holds all versions")
    versions = _versions(folder)
    return folder / f"{int(versions[-1]) + 1 if versions else 1:04d}"


def clear_drafts(folder: Path) -> None:
    """Remove the remains of saves that were killed. Call this only while holding the folder's lock."""
    for draft in folder.glob(".[0-9]*.*"):
        shutil.rmtree(draft, ignore_errors=True)


def _versions(folder: Path) -> list[str]:
    try:
        names = [path.name for path in folder.iterdir() if path.name.isdecimal() and (path / ABOUT).is_file()]
    except OSError:
        return []
    return sorted(names, key=int)


# Content


def _about(model: ContinualModel) -> dict[str, Any]:
    return {
        "format": FORMAT,
        "kcl": kcl.__version__,
        "torch": torch.__version__,
        "settings": model.settings.to_dict(),
        "seed": model.seed,
        "input_shape": list(model.input_shape or ()),
        "dtype": str(model.dtype).removeprefix("torch."),
        "view": [model.view.mean, model.view.std],
        "standardise": model.standardise,
        "held_out_share": model.held_out_share,
        "backbone": model.settings.backbone if model.module is None else "own",
        "columns": list(model.columns),
        "tasks": {name: dataclasses.asdict(task) for name, task in model.tasks.items()},
        "history": model.history,
    }


def _check(about: dict[str, Any]) -> None:
    """Raise TypeError if an entry of `model.json` does not have the type that `_about` writes."""
    texts, numbers = ("kcl", "torch", "dtype", "backbone", "sha256"), (int, float)
    tasks, history = about["tasks"], about["history"]
    checks = [
        *(isinstance(about[name], str) for name in texts),
        *(isinstance(about[name], dict) for name in ("settings", "tasks")),
        *(isinstance(about[name], list) for name in ("input_shape", "view", "columns", "history")),
        type(about["seed"]) is int and type(about["standardise"]) is bool,
        type(about["held_out_share"]) in numbers and all(type(size) is int for size in about["input_shape"]),
        *(type(task["lesson"]) is int and isinstance(task["labels"], list) for task in tasks.values()),
        *(all(type(count) is int for count in task["seen"]) for task in tasks.values()),
        *(type(task["temperature"]) in numbers for task in tasks.values()),
        *(isinstance(lesson["task"], str) and type(lesson["classes"]) is int for lesson in history),
        *(type(lesson.get(name, 0)) in numbers for lesson in history for name in ("samples", *_HELD_OUT)),
        *(len({name in lesson for name in _HELD_OUT}) == 1 for lesson in history),
    ]
    if not all(checks):
        raise TypeError


def _tensors(model: ContinualModel) -> dict[str, Tensor]:
    stack = model.stack
    groups: dict[str, dict[str, Tensor]] = {"model": stack.models[0].state_dict()}
    if stack.runs[0].average is not None:
        groups["average"] = stack.average_state(0)
    for task in model.tasks.values():
        groups[f"task.{task.lesson}.kept"] = stack.memory_kept(0, task.lesson)
        groups[f"task.{task.lesson}.head"] = model.answerer.head(task.lesson).tensors()
    return {
        f"{prefix}.{name}": tensor.detach().cpu().clone().contiguous()
        for prefix, tensors in groups.items()
        for name, tensor in tensors.items()
    }


def _settings(saved: dict[str, Any]) -> KclSettings:
    """The saved settings. Settings added after the first models may be missing: their defaults do what was done before.
    Any other must be there.
    """
    required = (name for name in KclSettings.names() if KclSettings.field(name).metadata["since"] <= _FIRST_EDITION)
    missing = [name for name in required if name not in saved]
    if missing:
        raise ValueError(f"it lacks the settings {', '.join(missing)}")
    return KclSettings().replace(**settings_record("kcl", saved))


def _task(entry: dict[str, Any]) -> LearnedTask:
    return LearnedTask(
        int(entry["lesson"]), tuple(entry["labels"]), tuple(map(int, entry["seen"])), float(entry["temperature"])
    )


def _model_shapes(model: ContinualModel, input_shape: tuple[int, ...]) -> dict[str, tuple[int, ...]]:
    """The shapes of the model's weights according to its settings, without allocating them."""
    with torch.device("meta"):
        method = LessonLearning(model.settings, 0)
        network = build_model(method, lambda: published_backbone(input_shape, model.settings), model.seed)
    return {f"model.{name}": tuple(tensor.shape) for name, tensor in network.state_dict().items()}


def _read(
    path: Path, sha256: str, model_shapes: dict[str, tuple[int, ...]] | None
) -> defaultdict[str, dict[str, Tensor]]:
    """Tensors by prefix and name, after the digest of the file and the shapes of the weights were checked.

    Prefixes: `model`, `average`, `task.LESSON.kept`, `task.LESSON.head`.
    """
    from safetensors import SafetensorError, safe_open

    with path.open("rb") as content:
        if hashlib.file_digest(content, "sha256").hexdigest() != sha256:
            raise ValueError(f"{TENSORS} does not have the SHA-256 in {ABOUT}: it was changed or is incomplete")
    tensors: defaultdict[str, dict[str, Tensor]] = defaultdict(dict)
    try:
        with safe_open(path, framework="pt") as file:
            names = list(file.keys())
            if model_shapes is not None:
                shapes = {name: tuple(file.get_slice(name).get_shape()) for name in names if name.startswith("model.")}
                if shapes != model_shapes:
                    raise ValueError("its weights do not have the shapes that its settings require")
            for full_name in names:
                prefix, _, name = full_name.partition(".")
                if prefix == "task":
                    lesson, part, name = name.split(".", 2)
                    prefix = f"task.{lesson}.{part}"
                tensors[prefix][name] = file.get_tensor(full_name)
    except SafetensorError as error:
        raise ValueError(f"{TENSORS} cannot be read ({error})") from None
    return tensors


def _coreset(tensors: dict[str, Tensor], model: ContinualModel, task: LearnedTask) -> dict[str, Tensor]:
    """A task's coreset, its shapes checked."""
    inputs, targets = tensors["inputs"], tensors["targets"]
    if targets.shape != (len(inputs), len(task.labels)) or inputs.shape[1:] != model.input_shape:
        raise ValueError("the shape of a coreset does not match its task")
    if any(tensors[name].shape != targets.shape for name in model.stack.method.trained_state):
        raise ValueError("the shape of trained targets does not match their coreset")
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
    required: dict[str, tuple[int, ...]] = {"scale": (), "shift": (), "usual": (draws, 2)}
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
    return tensors


@contextmanager
def _as_kcl_error(folder: Path) -> Iterator[None]:
    try:
        yield
    except (ValueError, KeyError, TypeError, AttributeError, IndexError, ArithmeticError, RuntimeError) as error:
        reason = str(error) if type(error) is ValueError else f"{ABOUT} or {TENSORS} is damaged"
        raise KclError(f"{folder} holds no complete model: {reason}") from None
    except OSError as error:
        raise KclError(f"{folder} cannot be read: {error.strerror or error}") from None
