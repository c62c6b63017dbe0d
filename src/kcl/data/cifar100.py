"""CIFAR-100 in its official Python layout: from the user's folder or archive or the cache, else fetched; always
verified. A user's archive is unpacked into the cache. The pickles are read by `pickles`, which runs nothing.
"""

from __future__ import annotations

import hashlib
import shutil
import tarfile
import zlib
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, final

import numpy as np
import torch
from torch import Tensor

from kcl.core.opening import reading, regular
from kcl.data import mirrors, pickles
from kcl.data.dataset import Dataset
from kcl.data.file_cache import Say
from kcl.data.mirrors import PublishedFile
from kcl.data.source import DATA_VARIABLE, PublishedSource
from kcl.errors import KclError

ARCHIVE = PublishedFile("cifar-100-python.tar.gz", "eb9058c3a382ffc7106e4002c42a8d85", 169_001_437)
MIRRORS = ("https://www.cs.toronto.edu/~kriz/",)
FOLDER = "cifar-100-python"
MEMBERS = (
    PublishedFile("train", "16019d7e3df5f24257cddd939b257f8d", 155_249_918),
    PublishedFile("test", "f0ef6b0ae62326f3e7ffdfab6717acfc", 31_049_707),
    PublishedFile("meta", "7973b15100ade9c7d40fb424638fde48", 1_473),
)
SHAPE = (3, 32, 32)


@final
class Cifar100Source(PublishedSource):
    """50,000 training and 10,000 test images, uint8 (n, 3, 32, 32), with the fine labels 0 … 99 (Krizhevsky).

    The images stay in the files, which are mapped into memory.
    """

    name, title = "cifar100", "CIFAR-100"
    licence = "none stated by its author"
    size = "50,000 train + 10,000 test, 169 MB to fetch"
    how_to_get = "kcl data fetch cifar100"

    layouts = (FOLDER, ".")
    advice = (
        f"put the folder {FOLDER} (with train, test and meta) or the archive {ARCHIVE.name} into DIR and pass "
        f"--data-dir DIR or set {DATA_VARIABLE}=DIR, or connect to the internet and let kcl fetch it"
    )

    def place_in(self, folder: Path) -> Path | None:
        if all((folder / file.name).is_file() for file in MEMBERS):
            return folder
        archive = folder / ARCHIVE.name
        return archive if archive.is_file() else None

    def checks(self, folder: Path) -> dict[Path, Callable[[], object]]:
        files = {folder / file.name: file for file in (*MEMBERS, ARCHIVE)}
        return {path: partial(_check, file, path) for path, file in files.items() if path.is_file()}

    def read(self, folder: Path) -> Dataset:
        for file in MEMBERS:
            _check(file, folder / file.name)
        names = pickles.read(folder / "meta")["fine_label_names"]
        train, test = (_split(folder / name) for name in ("train", "test"))
        return Dataset("cifar100", *train, *test, class_names=tuple(names))

    def obtain(self, folder: Path, archive: Path | None, private: Path, say: Say) -> Iterator[Path]:
        archive = archive or self.place_in(folder) or next(mirrors.fetch([ARCHIVE], MIRRORS, private, say))
        _check(ARCHIVE, archive)
        say(f"unpacking {archive.name} into {folder}")
        members = {f"{FOLDER}/{file.name}": file.name for file in MEMBERS}
        try:
            with tarfile.open(archive, "r:gz") as opened:
                for entry in opened:
                    content = opened.extractfile(entry) if entry.name in members else None
                    if content is not None:
                        with (private / members[entry.name]).open("wb") as out:
                            shutil.copyfileobj(content, out, 1 << 20)
        except (tarfile.TarError, zlib.error, EOFError) as error:
            raise KclError(f"{archive} is not a whole tar.gz archive: {error}") from None
        yield from (private / file.name for file in MEMBERS)


CIFAR100 = Cifar100Source()


def _check(file: PublishedFile, path: Path) -> None:
    with reading(path), open(path, "rb", opener=regular) as content:
        md5 = hashlib.file_digest(content, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()
    if md5 != file.md5:
        raise KclError(f"{path} is not the official {file.name} of CIFAR-100: it has md5 {md5}, not {file.md5}")


def _split(path: Path) -> tuple[Tensor, Tensor]:
    """Images and fine labels of one file; each image is a row: 1,024 red bytes, then green, then blue."""
    content: Any = pickles.read(path)
    images, labels = content["data"], np.asarray(content["fine_labels"])
    return torch.from_numpy(images.reshape(-1, *SHAPE)), torch.from_numpy(labels).long()
