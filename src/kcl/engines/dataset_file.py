"""Data on their way to workers: one file per content, found by its digest, read by mapping it into memory.

The file is a safetensors file of a dataset's four arrays. Its name is the SHA-256 of what is in it, so that it is
packed once, reaches every machine once, and cannot be taken for other data. It lies among the decoded images of the
cache (`kcl data list` says how large that is, `kcl data clear` empties it).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
from torch import Tensor

from kcl.data import file_cache, image_cache
from kcl.data.dataset import Dataset
from kcl.errors import KclError

ARRAYS = ("train_inputs", "train_labels", "test_inputs", "test_labels")
FORMAT = "kcl parcel 1"


def pack(dataset: Dataset, cache_dir: Path | None = None) -> tuple[str, Path]:
    """The digest of a dataset's content and the file that holds it, written if it is not there yet."""
    arrays = {name: getattr(dataset, name).contiguous() for name in ARRAYS}
    about = json.dumps([dataset.name, dataset.class_names, dataset.mean, dataset.std, dataset.identity])
    digest = _digest(about, arrays)
    path = _place(digest, cache_dir)
    if not path.exists():
        with file_cache.workshop(path.parent) as private:
            safetensors.torch.save_file(arrays, private / path.name, {"format": FORMAT, "about": about})
            file_cache.publish(private / path.name, path)
    return digest, path


def _digest(about: str, arrays: Mapping[str, Tensor]) -> str:
    found = hashlib.sha256(f"{FORMAT}\n{about}\n".encode())
    for name in ARRAYS:
        found.update(f"{name} {arrays[name].dtype} {tuple(arrays[name].shape)}\n".encode())
        found.update(arrays[name].numpy().data if arrays[name].numel() else b"")
    return found.hexdigest()


def unpack(digest: str, fetch: Callable[[], bytes | Path], cache_dir: Path | None = None) -> Dataset:
    """The dataset of a digest: from this machine's cache, else fetched once, kept there, and held against its name."""
    path = _place(digest, cache_dir)
    if not path.exists():
        found = fetch()
        if isinstance(found, Path):
            return _read(found, digest)  # a folder that both machines see
        with file_cache.workshop(path.parent) as private:
            (private / path.name).write_bytes(found)
            _read.__wrapped__(private / path.name, digest)
            file_cache.publish(private / path.name, path)
    return _read(path, digest)


@cache
def _read(path: Path, digest: str) -> Dataset:
    """The arrays are mapped: processes of one machine share them. Once a process, they are held against their name."""
    try:
        with safetensors.safe_open(path, framework="pt") as file:
            about = (file.metadata() or {})["about"]
            name, classes, mean, std, identity = json.loads(about)
            arrays = {array: file.get_tensor(array) for array in ARRAYS}
    except OSError as error:
        raise KclError(f"the data {path} cannot be read here: {error.strerror or error}") from None
    except (safetensors.SafetensorError, KeyError, ValueError, TypeError) as error:
        raise KclError(f"the data {path} are not whole ({error}); delete the file") from None
    if _digest(about, arrays) != digest:
        raise KclError(f"the data {path} are not those of their name; delete the file")
    own: Any = {"class_names": tuple(classes), "mean": _pair(mean), "std": _pair(std), "identity": identity}
    return Dataset(name, **arrays, **own)


def _pair(values: list[float] | None) -> tuple[float, ...] | None:
    return None if values is None else tuple(values)


def _place(digest: str, cache_dir: Path | None) -> Path:
    return file_cache.cache_dir(cache_dir) / image_cache.FOLDER / f"parcel-{digest}.safetensors"
