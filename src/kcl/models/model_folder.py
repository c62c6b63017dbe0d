"""A model on disk: one folder, `model.json` and `tensors.safetensors`, whole or not there.

`model.json` holds every setting, so that a model does not depend on the defaults of the program that reads it, the
tasks with their classes, what was learned when, and the SHA-256 of the tensors: the weights (`model.…`), their average
(`average.…`) where there is one, of every task what is kept (`task.LESSON.kept.…`) and its collapsed head
(`task.LESSON.head.…`). Nothing is pickled. A module of the user's own is not code that a file could hold: its weights
are saved, and it is given again when they are loaded.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import kcl
from kcl.benchmarks.task import View
from kcl.core.files import decode
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
LARGEST_ABOUT = 64 * 2**20
_HELD_OUT = ("held_out", "held_out_accuracy")
"""What the history tells of a lesson whose samples were partly held out."""
_FIRST_EDITION = 2
"""The edition of the settings (`core.settings.setting`) that the first models were saved with."""
_TYPES = {"uint8": torch.uint8, "float32": torch.float32}


def save_model(model: ContinualModel, folder: str | Path) -> Path:
    """Write a model to a folder that is not there yet. It appears under its name when it is whole, on the disk."""
    from safetensors.torch import save_file

    folder = Path(folder)
    if folder.exists():
        raise KclError(f"{folder} is there already; give a folder that is not")
    tensors = _tensors(model)
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        draft = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
        try:
            save_file(tensors, draft / TENSORS, metadata={"format": f"kcl model {FORMAT}"})
            about = _about(model) | {"sha256": _digest(draft / TENSORS)}
            (draft / ABOUT).write_text(json.dumps(about, allow_nan=False, ensure_ascii=False, indent=1) + "\n", "utf-8")
            for path in (draft / TENSORS, draft / ABOUT, draft):
                _flush(path)
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
    """The model in a folder, or the newest version of it there, ready to answer and to learn on.

    `backbone` is the module the model was made with, where it was made with one.
    """
    folder = newest(folder)
    about = read_about(folder)
    with _troubles(folder):
        model = ContinualModel(about["seed"], backbone, device, about["standardise"], about["held_out_share"])
        model.settings = _settings(about["settings"])
        if (about["backbone"] == "own") != (backbone is not None):
            needed = "was made with a module of yours: give it as backbone" if backbone is None else "needs no backbone"
            raise KclError(f"the model in {folder} {needed}")
        view = View(None, *(None if part is None else tuple(map(float, part)) for part in about["view"]))
        shape = tuple(int(size) for size in about["input_shape"])
        tasks = {name: _task(entry) for name, entry in about["tasks"].items()}
        expected = _expected(model, shape, about["backbone"] == "own")
        tensors = _read(folder / TENSORS, about["sha256"], expected)
        model.begin(shape, _TYPES[about["dtype"]], view)
        model.stack.load_run(_part(tensors, "model."), _part(tensors, "average."))
        for task in tasks.values():
            kept = {name: tensor.to(device) for name, tensor in _part(tensors, f"task.{task.lesson}.kept.").items()}
            classes = tuple(range(len(task.labels)))
            if kept["targets"].shape != (len(kept["inputs"]), len(classes)) or kept["inputs"].shape[1:] != shape:
                raise ValueError("a coreset has not the shape of its task")
            if any(kept[name].shape != kept["targets"].shape for name in model.stack.method.trained_state):
                raise ValueError("learned targets have not the shape of their coreset")
            model.stack.kept[task.lesson] = ({name: tensor[None] for name, tensor in kept.items()}, view)
        model.stack.method_state = {}
        model.tasks, model.history, model.columns = tasks, list(about["history"]), tuple(about["columns"])
        heads = {
            task.lesson: _head(_part(tensors, f"task.{task.lesson}.head."), model, task) for task in tasks.values()
        }
        model.refresh()
        model.answerer.install({lesson: Head(*map(_on(device), head)) for lesson, head in heads.items()})
    return model


def read_about(folder: Path) -> dict[str, Any]:
    """What `model.json` says, its format checked first."""
    path = folder / ABOUT
    try:
        if path.stat().st_size > LARGEST_ABOUT:
            raise KclError(f"{path} is larger than {LARGEST_ABOUT} bytes; it is no model")
        about = decode(path.read_bytes())
    except OSError:
        raise KclError(f"{folder} holds no model: there is no {ABOUT} in it that can be read") from None
    except (ValueError, RecursionError):
        raise KclError(f"{path} is not JSON; the model has to be saved again") from None
    found = about.get("format") if isinstance(about, dict) else None
    if found != FORMAT:
        raise KclError(f"{folder} has model format {str(found)[:40]!r}; this version of kcl reads format {FORMAT}")
    with _troubles(folder):
        _check(about)
    return about


def describe(folder: Path) -> dict[str, Any]:
    """What `model.json` says and what the folder takes, without loading the model."""
    from safetensors import SafetensorError, safe_open

    about = read_about(folder)
    with _troubles(folder):
        samples = size = 0
        try:
            with safe_open(folder / TENSORS, framework="pt") as file:
                for task in about["tasks"].values():
                    learned = ("correction",) if about["settings"].get("soft_targets") else ()
                    for part in ("inputs", "targets", *learned):
                        kept = file.get_slice(f"task.{task['lesson']}.kept.{part}")
                        size += math.prod(kept.get_shape()) * (1 if kept.get_dtype() == "U8" else 4)
                        samples += kept.get_shape()[0] if part == "inputs" else 0
        except SafetensorError as error:
            raise ValueError(f"{TENSORS} cannot be read ({error})") from None
        total = sum((folder / name).stat().st_size for name in (ABOUT, TENSORS))
        return about | {"coreset_samples": samples, "coreset_bytes": size, "bytes": total}


# Versions side by side


def newest(folder: str | Path) -> Path:
    """The newest version of a model: the folder itself if it is one, else the subfolder with the highest number."""
    folder = Path(folder)
    if (folder / ABOUT).is_file():
        return folder
    versions = _versions(folder)
    if not versions:
        raise KclError(f"{folder} holds no model: expected {ABOUT} in it, or in a numbered folder such as 0001")
    return folder / versions[-1]


def next_version(folder: str | Path) -> Path:
    """Where the version after the newest belongs."""
    folder = Path(folder)
    if (folder / ABOUT).is_file():
        raise KclError(f"{folder} is one version of a model; give the folder that is to hold its versions")
    versions = _versions(folder)
    return folder / f"{int(versions[-1]) + 1 if versions else 1:04d}"


def clear_drafts(folder: Path) -> None:
    """Remove what processes that were killed while saving left; to be called by who holds the folder."""
    for draft in folder.glob(".[0-9]*.*"):
        shutil.rmtree(draft, ignore_errors=True)


def _versions(folder: Path) -> list[str]:
    try:
        names = [path.name for path in folder.iterdir() if path.name.isdecimal() and (path / ABOUT).is_file()]
    except OSError:
        return []
    return sorted(names, key=int)


# Parts


def _about(model: ContinualModel) -> dict[str, Any]:
    own = model.module is not None
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
        "backbone": "own" if own else model.settings.backbone,
        "columns": list(model.columns),
        "tasks": {name: dataclasses.asdict(task) for name, task in model.tasks.items()},
        "history": model.history,
    }


def _check(about: dict[str, Any]) -> None:
    """Refuse a `model.json` whose parts are not of the types that `_about` gives them."""
    texts, numbers = ("kcl", "torch", "dtype", "backbone", "sha256"), (int, float)
    tasks, history = about["tasks"], about["history"]
    sound = [
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
    if not all(sound):
        raise TypeError


def _tensors(model: ContinualModel) -> dict[str, Tensor]:
    stack = model.stack
    found = {f"model.{name}": tensor for name, tensor in stack.models[0].state_dict().items()}
    if stack.runs[0].average is not None:
        found |= {f"average.{name}": tensor for name, tensor in stack.average_state(0).items()}
    for task in model.tasks.values():
        kept = stack.memory_kept(0, task.lesson)
        found |= {f"task.{task.lesson}.kept.{name}": tensor for name, tensor in kept.items()}
        head = model.answerer.head(task.lesson).tensors()
        found |= {f"task.{task.lesson}.head.{name}": tensor for name, tensor in head.items()}
    return {name: tensor.detach().cpu().clone().contiguous() for name, tensor in found.items()}


def _settings(saved: dict[str, Any]) -> KclSettings:
    """The settings that were saved. Those added since the first models are at their defaults where they are missing,
    which do what was done without them; any other must be there.
    """
    needed = (name for name in KclSettings.names() if KclSettings.field(name).metadata["since"] <= _FIRST_EDITION)
    missing = [name for name in needed if name not in saved]
    if missing:
        raise ValueError(f"it lacks the settings {', '.join(missing)}")
    return KclSettings().replace(**settings_record("kcl", saved))


def _task(entry: dict[str, Any]) -> LearnedTask:
    return LearnedTask(
        int(entry["lesson"]), tuple(entry["labels"]), tuple(map(int, entry["seen"])), float(entry["temperature"])
    )


def _expected(model: ContinualModel, shape: tuple[int, ...], own: bool) -> dict[str, tuple[int, ...]] | None:
    """The shapes of the model's weights, found without allocating them; None for a module only its user can make."""
    if own:
        return None
    with torch.device("meta"):
        method = LessonLearning(model.settings, 0)
        twin = build_model(method, lambda: published_backbone(shape, model.settings), model.seed)
    return {f"model.{name}": tuple(tensor.shape) for name, tensor in twin.state_dict().items()}


def _read(path: Path, sha256: str, expected: dict[str, tuple[int, ...]] | None) -> dict[str, Tensor]:
    """The tensors, after their file's digest and every shape of the weights were found right."""
    from safetensors import SafetensorError, safe_open

    if _digest(path) != sha256:
        raise ValueError(f"{TENSORS} has not the SHA-256 that {ABOUT} names; it was changed or is not whole")
    try:
        with safe_open(path, framework="pt") as file:
            names = list(file.keys())
            if expected is not None:
                found = {n: tuple(file.get_slice(n).get_shape()) for n in names if n.startswith("model.")}
                if found != expected:
                    raise ValueError("its weights have not the shapes that its settings ask for")
            return {name: file.get_tensor(name) for name in names}
    except SafetensorError as error:
        raise ValueError(f"{TENSORS} cannot be read ({error})") from None


def _part(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}


def _head(tensors: dict[str, Tensor], model: ContinualModel, task: LearnedTask) -> Head:
    """A task's head, held against the coreset and the weights it belongs to (shapes: `methods.ridge_head.Head`)."""
    network = model.stack.models[0]
    assert isinstance(network, KernelModel)  # noqa: S101 - what the method builds
    shown = copies_at_test(model.settings) * len(model.stack.memory_kept(0, task.lesson)["inputs"])
    width, labels = network.backbone.features, rotations(model.settings) * len(task.labels)
    kernel = model.answerer.method.kernel
    draws, explicit = model.settings.test_draws if kernel.inferred else 1, kernel.explicit
    size = (model.settings.bases if kernel.fourier else width) if explicit else shown
    expected = {"scale": (), "shift": (), "usual": (draws, 2)}
    expected |= {"weights": (draws, size, labels), "halves": (draws, shown, size)}
    expected |= {"frequencies": (draws, size, width), "phases": (size,)} if kernel.fourier else {}
    expected |= {} if explicit else {"anchors": (shown, width)}
    if model.settings.batch_norm == "coreset":
        norms = [module for module in network.backbone.modules() if isinstance(module, nn.BatchNorm2d)]
        expected |= {"moments": (2 * sum(norm.num_features for norm in norms),)}
    if model.settings.shared_metric:
        expected |= {"metric": (width, width)}
    found = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    if found != expected or any(tensor.dtype != torch.float32 for tensor in tensors.values()):
        raise ValueError("a head has not the shape that its coreset and settings ask for")
    return Head(**tensors)


def _on(device: str | torch.device) -> Any:
    return lambda tensor: None if tensor is None else tensor.to(device)


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _flush(path: Path) -> None:
    number = os.open(path, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)


@contextmanager
def _troubles(folder: Path) -> Iterator[None]:
    try:
        yield
    except (ValueError, KeyError, TypeError, AttributeError, IndexError, ArithmeticError, RuntimeError) as error:
        told = str(error) if type(error) is ValueError else f"{ABOUT} or {TENSORS} is not as it should be"
        raise KclError(f"{folder} holds no whole model: {told}") from None
    except OSError as error:
        raise KclError(f"{folder} cannot be read: {error.strerror or error}") from None
