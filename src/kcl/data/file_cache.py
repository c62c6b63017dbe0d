"""The cache on disk: files appear in it whole or not at all, and nothing in it is lost silently.

No locks: every process works in a folder of its own inside the cache and renames finished, verified files into place.
Two processes that fetch the same file do the work twice and both leave the same bytes.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path

from kcl.errors import KclError

CACHE_VARIABLE = "KCL_CACHE"
DATA_VARIABLE = "KCL_DATA"


def quiet(message: str) -> None:
    """Say nothing: what functions that report on their progress do unless they are given a voice."""


def cache_dir(given: Path | None = None) -> Path:
    """The folder for fetched data: the one given, else `KCL_CACHE`, else the user's cache folder of this system."""
    if given is not None:
        return given.expanduser()
    if named := os.environ.get(CACHE_VARIABLE):
        return Path(named).expanduser()
    try:
        import pooch
    except ImportError:
        raise KclError(
            f"the package pooch, which knows this system's cache folder, is missing: pip install pooch or set "
            f"{CACHE_VARIABLE} to a folder"
        ) from None
    return Path(pooch.os_cache("kcl"))


def own_place(
    name: str, data_dir: Path | None, search: Callable[[Path], Path | None], expected: Callable[[Path], str]
) -> Path | None:
    """Where the user has a dataset: in the folder given, which then must hold it, else in the one `KCL_DATA` names."""
    if data_dir is None:
        named = os.environ.get(DATA_VARIABLE)
        return search(Path(named).expanduser()) if named else None
    found = search(data_dir.expanduser())
    if found is None:
        raise KclError(f"{name} was not found under {data_dir}: {expected(data_dir)}")
    return found


@contextmanager
def workshop(folder: Path) -> Iterator[Path]:
    """A private folder inside `folder`, gone afterwards; trouble with the disk becomes a sentence about the cache."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".fetch-", dir=folder) as private:
            yield Path(private)
    except OSError as error:
        raise KclError(
            f"the cache folder {folder} cannot be written to ({error.strerror or error}): "
            f"set {CACHE_VARIABLE} to one that can be"
        ) from error


def publish(finished: Path, final: Path) -> None:
    """Move a finished file to its final name in one step, on disk before it is visible."""
    with finished.open("rb+") as file:
        os.fsync(file.fileno())
    # Temporary files are readable by their owner only; a cache may be shared.
    finished.chmod(0o644)
    finished.replace(final)


def move_aside(path: Path) -> Path:
    """Rename a broken file to the first free of `NAME.broken`, `NAME.broken.1`, …, so that it can be looked at."""
    names = (path.with_name(f"{path.name}.broken{f'.{i}' if i else ''}") for i in count())
    aside = next(name for name in names if not name.exists())
    try:
        path.rename(aside)
    except FileNotFoundError:
        pass  # Another process was first.
    except OSError as error:
        raise KclError(f"{path} is broken and cannot be moved aside: {error.strerror or error}") from error
    return aside
