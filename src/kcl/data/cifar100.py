"""CIFAR-100 in its official Python layout: the user's folder or archive, else the cache, else fetched; verified always.

Order: the folder given; else the folder `KCL_DATA` names; else the cache; else the web. A user's folder is only ever
read: an archive in it is unpacked into the cache. The pickles are read by `pickles`, which runs nothing.
"""

from __future__ import annotations

import gzip
import hashlib
import os
import tarfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from kcl.data import file_cache, mirrors, pickles
from kcl.data.dataset import Dataset
from kcl.data.file_cache import DATA_VARIABLE, quiet
from kcl.errors import KclError


class Member(NamedTuple):
    """One of the files of the archive."""

    md5: str
    size: int


class Archive(NamedTuple):
    """The archive as its authors publish it."""

    gz_name: str
    gz_md5: str
    gz_bytes: int


ARCHIVE = Archive("cifar-100-python.tar.gz", "eb9058c3a382ffc7106e4002c42a8d85", 169_001_437)
MIRRORS = ("https://www.cs.toronto.edu/~kriz/",)
FOLDER = "cifar-100-python"
MEMBERS = {
    "train": Member("16019d7e3df5f24257cddd939b257f8d", 155_249_918),
    "test": Member("f0ef6b0ae62326f3e7ffdfab6717acfc", 31_049_707),
    "meta": Member("7973b15100ade9c7d40fb424638fde48", 1_473),
}
SHAPE = (3, 32, 32)
CLASSES = 100


def load(
    data_dir: Path | None = None,
    cache_dir: Path | None = None,
    download: bool = True,
    say: Callable[[str], None] = quiet,
) -> Dataset:
    """50,000 training and 10,000 test images, uint8 (n, 3, 32, 32), with the fine labels 0 … 99.

    The images stay in the files, which are mapped into memory.
    """
    own = _own_place(data_dir)
    if own is not None and own.is_dir():
        return _read(own)
    if own is None and (named := os.environ.get(DATA_VARIABLE)):
        say(f"{DATA_VARIABLE}={named} does not hold CIFAR-100; going on to the cache")
    return _from_cache(_cache_folder(cache_dir), own, download, say)


def find(data_dir: Path | None = None, cache_dir: Path | None = None) -> Path | None:
    """The folder or archive `load` would read from, unopened; None where it would have to fetch."""
    own = _own_place(data_dir)
    return own if own is not None else _complete(_cache_folder(cache_dir))


def verify(data_dir: Path | None = None, cache_dir: Path | None = None) -> Path:
    """The place `load` would read from, once all of it has proved official; nothing is unpacked, moved or fetched."""
    place = find(data_dir, cache_dir)
    if place is None:
        raise KclError(f"CIFAR-100 was not found: {_advice()}")
    if place.is_dir():
        _read(place)
    else:
        _check_md5(place, ARCHIVE.gz_md5)
    return place


def _advice() -> str:
    return (
        f"put the folder {FOLDER} (with train, test and meta) or the archive {ARCHIVE.gz_name} into DIR and pass "
        f"--data-dir DIR or set {DATA_VARIABLE}=DIR, or connect to the internet and let kcl fetch it"
    )


def _own_place(data_dir: Path | None) -> Path | None:
    return file_cache.own_place("CIFAR-100", data_dir, _search, _expected)


def _expected(data_dir: Path) -> str:
    return f"looked for train, test and meta in {data_dir / FOLDER} and {data_dir}, and for {ARCHIVE.gz_name} in both"


def _search(data_dir: Path) -> Path | None:
    folders = (data_dir / FOLDER, data_dir)
    archives = [folder / ARCHIVE.gz_name for folder in folders if (folder / ARCHIVE.gz_name).is_file()]
    return next((folder for folder in folders if _complete(folder)), archives[0] if archives else None)


def _complete(folder: Path) -> Path | None:
    return folder if all((folder / name).is_file() for name in MEMBERS) else None


def _cache_folder(cache_dir: Path | None) -> Path:
    return file_cache.cache_dir(cache_dir) / FOLDER


def _read(folder: Path) -> Dataset:
    """The dataset in a folder, once every file of it has proved official."""
    for name, member in MEMBERS.items():
        _check_md5(folder / name, member.md5)
    return _decode(folder)


def _decode(folder: Path) -> Dataset:
    names = pickles.read(folder / "meta")["fine_label_names"]
    train, test = (_split(folder / name) for name in ("train", "test"))
    return Dataset("cifar100", *train, *test, class_names=tuple(names))


def _split(path: Path) -> tuple[Tensor, Tensor]:
    """Images and fine labels of one file; each image is a row: 1,024 red bytes, then green, then blue."""
    content: Any = pickles.read(path)
    images, labels = content["data"], np.asarray(content["fine_labels"])
    return torch.from_numpy(images.reshape(-1, *SHAPE)), torch.from_numpy(labels).long()


def _check_md5(path: Path, md5: str) -> None:
    try:
        with path.open("rb") as file:
            found = hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()
    except OSError as error:
        raise KclError(f"{path} cannot be read: {error.strerror or error}") from None
    if found != md5:
        raise KclError(f"{path} is not the official {path.name} of CIFAR-100: it has md5 {found}, not {md5}")


def _from_cache(folder: Path, archive: Path | None, download: bool, say: Callable[[str], None]) -> Dataset:
    """The cache's own files, made whole from an archive where they are not."""
    for name, member in MEMBERS.items():
        if (folder / name).is_file():
            try:
                _check_md5(folder / name, member.md5)
            except KclError as error:
                if archive is None and not download:
                    raise
                say(f"{error}; it is moved aside to {file_cache.move_aside(folder / name).name}")
    if not _complete(folder):
        if archive is None and not download:
            raise KclError(f"CIFAR-100 was not found and downloading is switched off: {_advice()}")
        with file_cache.workshop(folder) as private:
            source = archive or _download(private, say)
            _check_md5(source, ARCHIVE.gz_md5)
            say(f"unpacking {source.name} into {folder}")
            unpack(source, private)
            for name in MEMBERS:
                file_cache.publish(private / name, folder / name)
        say(f"CIFAR-100 is in {folder}")
    return _decode(folder)


def _download(private: Path, say: Callable[[str], None]) -> Path:
    try:
        [(_, path)] = mirrors.fetch([ARCHIVE], MIRRORS, private, say)
    except KclError as error:
        say(str(error))
        raise KclError(f"CIFAR-100 was not found and could not be downloaded: {_advice()}") from None
    return path


def unpack(archive: Path, folder: Path) -> None:
    """Take the three official files out of an archive, and nothing else: no other name, no link, no byte more."""
    try:
        with tarfile.open(archive, "r:gz") as opened:
            for item in opened:
                name = item.name.removeprefix(f"{FOLDER}/")
                if name not in MEMBERS or item.name != f"{FOLDER}/{name}" or not item.isreg():
                    continue
                if item.size != MEMBERS[name].size:
                    raise KclError(
                        f"{archive} is not CIFAR-100: its {name} has {item.size} bytes, not {MEMBERS[name].size}"
                    )
                content = opened.extractfile(item)
                with (folder / name).open("wb") as out:
                    while content is not None and (chunk := content.read(1 << 20)):
                        out.write(chunk)
                _check_md5(folder / name, MEMBERS[name].md5)
    except (tarfile.TarError, gzip.BadGzipFile, zlib.error, EOFError) as error:
        raise KclError(f"{archive} is not a whole tar.gz archive: {error}") from None
    missing = [name for name in MEMBERS if not (folder / name).is_file()]
    if missing:
        raise KclError(f"{archive} does not hold {', '.join(missing)} of CIFAR-100")
