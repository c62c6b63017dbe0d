"""Datasets for workers: one file per content, named by its digest, memory-mapped when it is read.

The file is a safetensors file with the four arrays of a dataset. Its name contains the SHA-256 of the content, so it is
written once, copied once to every machine, and cannot be confused with other data. It is part of the image cache
(`kcl data list` shows its size, `kcl data clear` empties it).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import safetensors
import safetensors.torch
from torch import Tensor

from kcl.core.opening import check_readable
from kcl.data import file_cache
from kcl.data.dataset import Dataset
from kcl.errors import KclError
from kcl.experiments.admission import DatasetKey

ARRAYS = ("train_inputs", "train_labels", "test_inputs", "test_labels")
FORMAT = "kcl dataset 1"


@dataclass(frozen=True)
class DatasetFile:
    """A dataset that a job needs."""

    key: DatasetKey
    digest: str
    path: str
    """On the machine of the command."""


def pack(dataset: Dataset, cache_dir: Path | None = None) -> tuple[str, Path]:
    """The digest of a dataset and the file that holds it, written if it does not exist."""
    arrays = {name: getattr(dataset, name).contiguous() for name in ARRAYS}
    about = json.dumps([dataset.name, dataset.class_names, dataset.mean, dataset.std, dataset.identity])
    digest = _digest(about, arrays)
    path = _cache_path(digest, cache_dir)
    if not path.exists():
        with file_cache.new_file(path) as private:
            safetensors.torch.save_file(arrays, private, {"format": FORMAT, "about": about})
    return digest, path


def unpack(digest: str, fetch: Callable[[], bytes | Path], cache_dir: Path | None = None) -> Dataset:
    """The dataset with this digest: from the cache of this machine, or fetched, verified and added to the cache."""
    path = _cache_path(digest, cache_dir)
    if not path.exists():
        content = fetch()
        if isinstance(content, Path):
            return _read(content, digest)  # a folder that both machines share
        with file_cache.new_file(path) as private:
            private.write_bytes(content)
            _read.__wrapped__(private, digest)
    return _read(path, digest)


@cache
def _read(path: Path, digest: str) -> Dataset:
    """Memory-mapped, so that the processes of a machine share the arrays. Verified once per process."""
    try:
        check_readable(path)
        with safetensors.safe_open(path, framework="pt") as file:
            about = (file.metadata() or {})["about"]
            name, classes, mean, std, identity = json.loads(about)
            arrays = {array: file.get_tensor(array) for array in ARRAYS}
    except OSError as error:
        raise KclError(f"the dataset file {path} cannot be read here: {error.strerror or error}") from None
    except (safetensors.SafetensorError, KeyError, ValueError, TypeError) as error:
        raise KclError(f"the dataset file {path} is damaged ({error}); delete it") from None
    if _digest(about, arrays) != digest:
        raise KclError(f"the content of {path} does not match the digest in its name; delete it")
    mean, std = (None if values is None else tuple(values) for values in (mean, std))
    return Dataset(name, **arrays, class_names=tuple(classes), mean=mean, std=std, identity=identity)


def _digest(about: str, arrays: Mapping[str, Tensor]) -> str:
    digest = hashlib.sha256(f"{FORMAT}\n{about}\n".encode())
    for name in ARRAYS:
        digest.update(f"{name} {arrays[name].dtype} {tuple(arrays[name].shape)}\n".encode())
        digest.update(arrays[name].numpy().data if arrays[name].numel() else b"")
    return digest.hexdigest()


def _cache_path(digest: str, cache_dir: Path | None) -> Path:
    return file_cache.cache_dir(cache_dir) / file_cache.IMAGES / f"dataset-{digest}.safetensors"
