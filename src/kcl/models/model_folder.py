"""A model on disk: a folder with `model.json` and `tensors.safetensors`. A failed save leaves no folder behind.

`model.json` holds all settings, so that a model does not depend on the defaults of the version that reads it, the tasks
with their classes, the history of lessons, and the SHA-256 of the tensor file. Which tensors there are is said in
`coreset_tensors` and `streaming_tensors`, for the two kinds of heads. Nothing is pickled. The code of a user's own
backbone module cannot be saved, only its weights: pass the module again when loading.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

import kcl
from kcl.benchmarks.task import View
from kcl.core.files import read_json, sync_folder, write_json, write_whole
from kcl.core.locking import private_folder
from kcl.core.opening import regular
from kcl.core.randomness import LARGEST_SEED
from kcl.errors import KclError
from kcl.models import coreset_tensors, streaming_tensors
from kcl.models.continual_model import ContinualModel, to_be_kept
from kcl.models.lessons import LearnedTask

FORMAT = 2
"""Format 1 had coresets only, their temperatures in `model.json`, and no limits of the scaling."""
ABOUT, TENSORS = "model.json", "tensors.safetensors"
_KINDS: dict[str, ModuleType] = {"coreset": coreset_tensors, "streaming": streaming_tensors}
LONGEST_REASON = 300
"""Names in a file may be of any length."""
_HELD_OUT = ("held_out", "held_out_accuracy")
"""History entries of a lesson with held-out samples."""
_ENTRIES: dict[str, tuple[type, ...]] = {
    **dict.fromkeys(("kcl", "torch", "dtype", "head", "sha256"), (str,)),
    **dict.fromkeys(("input_shape", "view", "columns", "history"), (list,)),
    **{"settings": (dict,), "tasks": (dict,), "seed": (int,), "standardise": (bool,), "held_out_share": (int, float)},
}
"""Types of the entries of `model.json` that every model has."""
_TYPES = {"uint8": torch.uint8, "float32": torch.float32}


def save_model(model: ContinualModel, folder: str | Path) -> Path:
    """Write a model to a new folder, whose path is returned. It appears only when it is complete and on disk."""
    from safetensors.torch import save

    folder, model = Path(folder), to_be_kept(model)
    if model.numbers:
        raise KclError("a model of numbers cannot be saved in a folder: pickle its estimator")
    if folder.exists():
        raise KclError(f"{folder} exists already; choose a new folder")
    plain = {
        name: each.detach().cpu().clone().contiguous() for name, each in _KINDS[model.head].tensors_of(model).items()
    }
    tensors = save(plain, metadata={"format": f"kcl model {FORMAT}"})
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with private_folder(folder.parent, f".{folder.name}.kcl-", 0o777) as draft:
            write_whole(draft / TENSORS, tensors)
            write_json(draft / ABOUT, _about(model) | {"sha256": hashlib.sha256(tensors).hexdigest()})
            draft.rename(folder)
        sync_folder(folder.parent)
    except OSError as error:
        raise KclError(f"the model was not saved to {folder}: {error.strerror or error}") from None
    return folder


def load_model(
    folder: str | Path, backbone: nn.Module | None = None, device: str | torch.device = "cpu"
) -> ContinualModel:
    """Load the model in a folder, or the newest version in it. The model can predict and continue to learn.

    Parameters
    ----------
    folder : str or Path
        A folder that `save_model` or `kcl update` wrote.
    backbone : torch.nn.Module, optional
        If the model was created with a module of your own, that module again.
    device : str or torch.device
        Where the model computes from now on; "auto": on a GPU if there is one.
    """
    folder = newest(folder)
    about = read_about(folder)
    with as_kcl_error(folder):
        tensors = {name: _finite(name, tensor) for name, tensor in _stored_tensors(folder, about["sha256"]).items()}
        model = ContinualModel(
            about["seed"], backbone, device, about["standardise"], about["held_out_share"], about["head"]
        )
        tasks = {
            name: LearnedTask(task["lesson"], tuple(task["labels"]), tuple(task["seen"]))
            for name, task in about["tasks"].items()
        }
        model.history, model.columns = list(about["history"]), tuple(about["columns"])
        model.input_shape, model.dtype = tuple(about["input_shape"]), _TYPES[about["dtype"]]
        view, kind = _view(*about["view"], columns=about["input_shape"][0]), _KINDS[about["head"]]
        _check_tensors(tensors, kind.required(model, about, tasks, tensors))
        kind.restore(model, about, tasks, tensors, view)
    return model


def read_about(folder: Path) -> dict[str, Any]:
    """Read and check `model.json`."""
    if not (folder / ABOUT).is_file():
        raise KclError(f"{folder} holds no model: it has no {ABOUT}")
    about = read_json(folder / ABOUT)
    version = about.get("format") if isinstance(about, dict) else None
    if version not in (1, FORMAT):
        raise KclError(
            f"{folder} has model format {str(version)[:40]!r}; this version of kcl reads formats up to {FORMAT}"
        )
    with as_kcl_error(folder):
        if version == 1:
            about |= {"head": "coreset"}
        _check(about)
    return about


def describe(folder: Path) -> dict[str, Any]:
    """The content of `model.json` and the sizes of what the model keeps, without loading it."""
    about = read_about(folder)
    with as_kcl_error(folder):
        total = sum((folder / name).stat().st_size for name in (ABOUT, TENSORS))
        return about | _KINDS[about["head"]].sizes(_stored_tensors(folder)) | {"bytes": total}


# Versions of a model


def newest(folder: str | Path) -> Path:
    """The newest version of a model: the folder itself if it holds one, else the subfolder with the highest number."""
    folder = Path(folder)
    if (folder / ABOUT).is_file():
        return folder
    existing = versions(folder)
    if not existing:
        raise KclError(f"{folder} holds no model: expected {ABOUT} in it, or in a numbered folder such as 0001")
    return existing[-1]


def next_version(folder: str | Path) -> Path:
    """The folder for the next version."""
    folder = Path(folder)
    if (folder / ABOUT).is_file():
        raise KclError(f"{folder} is a single version of a model; give the folder that holds all versions")
    existing = versions(folder)
    return folder / f"{int(existing[-1].name) + 1 if existing else 1:04d}"


def versions(folder: Path) -> list[Path]:
    """The versions in a folder, oldest first."""
    try:
        found = [path for path in folder.iterdir() if path.name.isdecimal() and (path / ABOUT).is_file()]
    except OSError:
        return []
    return sorted(found, key=lambda path: int(path.name))


# Content


def _about(model: ContinualModel) -> dict[str, Any]:
    return {
        "format": FORMAT,
        "kcl": kcl.__version__,
        "torch": torch.__version__,
        "head": model.head,
        "seed": model.seed,
        "input_shape": list(model.input_shape or ()),
        "dtype": str(model.dtype).removeprefix("torch."),
        "view": [model.view.mean, model.view.std, model.view.limit, model.view.reach],
        "standardise": bool(model.standardise),
        "held_out_share": model.held_out_share,
        "columns": list(model.columns),
        "tasks": {name: dataclasses.asdict(task) for name, task in model.tasks.items()},
        "history": model.history,
    } | _KINDS[model.head].about(model)


def _check(about: dict[str, Any]) -> None:
    """Raise TypeError if an entry of `model.json` does not have the type that `_about` writes, ValueError if the tasks
    do not go together.
    """
    shape, tasks, history = about["input_shape"], about["tasks"].values(), about["history"]
    checks = [
        *(type(about[name]) in kinds for name, kinds in _ENTRIES.items()),
        about["head"] in _KINDS,
        0 <= about["seed"] <= LARGEST_SEED,
        all(type(size) is int and size > 0 for size in shape),
        all(isinstance(name, str) for name in about["columns"]) and len(about["columns"]) in (0, shape[0]),
        *(type(task["lesson"]) is int and task["lesson"] >= 0 and _are_labels(task["labels"]) for task in tasks),
        *(all(type(count) is int for count in task["seen"]) for task in tasks),
        *(isinstance(lesson["task"], str) and type(lesson["classes"]) is int for lesson in history),
        *(type(lesson.get(name, 0)) in (int, float) for lesson in history for name in ("samples", *_HELD_OUT)),
        *(len({name in lesson for name in _HELD_OUT}) == 1 for lesson in history),
    ]
    if not all(checks):
        raise TypeError
    if len({task["lesson"] for task in tasks}) < len(tasks):
        raise ValueError("two of its tasks have the same lesson")
    for name, task in about["tasks"].items():
        if not len(task["labels"]) == len(task["seen"]) == len(set(task["labels"])) or min(task["seen"], default=0) < 0:
            raise ValueError(f"the classes of task {name!r} do not match the samples seen")


def _are_labels(labels: Any) -> bool:
    """Whether these are labels of one task: all text or all numbers."""
    kinds = {type(label) for label in labels} if isinstance(labels, list) else {dict}
    return kinds <= {str} or kinds <= {int, float, bool}


def _view(mean: Any, std: Any, limit: Any = None, reach: Any = None, *, columns: int) -> View:
    """The scaling, checked to be usable in single precision. Format 1 has no limits."""
    means, deviations = (None if values is None else tuple(map(float, values)) for values in (mean, std))
    limits = [None if value is None else float(value) for value in (limit, reach)]
    positive = [*(deviations or ()), *(value for value in limits if value is not None)]
    single = torch.finfo(torch.float32)
    if (
        {len(values or ()) for values in (means, deviations)} not in ({0}, {columns})
        or not all(single.tiny <= value <= single.max for value in positive)
        or not all(abs(value) <= single.max for value in means or ())
    ):
        raise ValueError("its scaling does not fit its inputs or divides them by zero")
    return View(None, means or None, deviations or None, *limits)


def _stored_tensors(folder: Path, sha256: str | None = None) -> dict[str, Tensor]:
    """The tensors of the file, whose digest is checked if it is given. They are read from disk when they are used."""
    from safetensors import SafetensorError, safe_open

    path = folder / TENSORS
    if not path.is_file():
        raise ValueError(f"it has no {TENSORS}")
    if sha256 is not None:
        with open(path, "rb", opener=regular) as content:
            if hashlib.file_digest(content, "sha256").hexdigest() != sha256:
                raise ValueError(f"{TENSORS} does not have the SHA-256 in {ABOUT}: it was changed or is incomplete")
    try:
        with safe_open(path, framework="pt") as file:
            return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except SafetensorError as error:
        raise ValueError(f"{TENSORS} cannot be read ({error})") from None


def _finite(name: str, stored: Tensor) -> Tensor:
    """A tensor of finite numbers, in memory of its own: products of tensors that begin anywhere in a file differ from
    those of aligned ones in the last digit.
    """
    tensor = stored.clone()
    if tensor.is_floating_point() and not bool(
        torch.isfinite(tensor.float() if tensor.element_size() < 2 else tensor).all()
    ):
        raise ValueError(f"the tensor {name} has values that are not finite")
    return tensor


def _check_tensors(tensors: dict[str, Tensor], required: dict[str, Tensor]) -> None:
    kinds = [{name: (each.shape, each.dtype) for name, each in several.items()} for several in (tensors, required)]
    for name in sorted(kinds[0].keys() | kinds[1].keys()):
        if kinds[0].get(name) != kinds[1].get(name):
            raise ValueError(f"the tensor {name} is missing, or not what its tasks and settings require")


@contextmanager
def as_kcl_error(folder: Path) -> Iterator[None]:
    """Whatever is amiss in the files of a model is told in one sentence."""
    try:
        yield
    except KclError as error:
        raise KclError(f"{folder}: {str(error)[:LONGEST_REASON]}") from None
    except (ValueError, KeyError, TypeError, AttributeError, IndexError, ArithmeticError, RuntimeError) as error:
        reason = str(error) if type(error) is ValueError else f"{ABOUT} or {TENSORS} is damaged"
        raise KclError(f"{folder} holds no complete model: {reason[:LONGEST_REASON]}") from None
    except OSError as error:
        raise KclError(f"{folder} cannot be read: {error.strerror or error}") from None
