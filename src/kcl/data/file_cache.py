"""The cache on disk: files appear in it whole or not at all, and none is lost silently.

No locks: every process works in a private folder inside the cache and renames finished, verified files into place. Two
processes that fetch the same file do the work twice and leave the same bytes.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path

from safetensors import SafetensorError

from kcl.core.files import sync_folder
from kcl.core.locking import private_folder
from kcl.core.opening import check_replaceable
from kcl.errors import KclError

CACHE_VARIABLE = "KCL_CACHE"
IMAGES, FEATURES = DERIVED = ("images", "features")
"""Folders of the cache whose files can be made again: decoded images and packed data, features of frozen networks."""
Say = Callable[[str], None]


def quiet(message: str) -> None:
    """Says nothing: the default of functions that report their progress."""


def cache_dir(folder: Path | None = None) -> Path:
    """The folder for fetched data: the one given, else `KCL_CACHE`, else this system's cache folder of the user."""
    if folder is not None:
        return folder.expanduser()
    if named := os.environ.get(CACHE_VARIABLE):
        return Path(named).expanduser()
    try:
        import platformdirs
    except ImportError:
        raise KclError(f"platformdirs is missing: pip install it or set {CACHE_VARIABLE} to a folder") from None
    return Path(platformdirs.user_cache_dir("kcl"))


@contextmanager
def workshop(folder: Path) -> Iterator[Path]:
    """A private folder inside `folder`, removed afterwards. Disk errors become a message about the cache."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with private_folder(folder, ".fetch-") as private:
            yield private
    except (OSError, SafetensorError) as error:  # the latter where safetensors meets a full disk
        raise KclError(
            f"the cache folder {folder} cannot be written to ({getattr(error, 'strerror', None) or error}): "
            f"set {CACHE_VARIABLE} to one that can be"
        ) from error


@contextmanager
def new_file(final: Path) -> Iterator[Path]:
    """A private path for a file that appears under its final name once it is complete."""
    with workshop(final.parent) as private:
        yield private / final.name
        publish(private / final.name, final)


def publish(finished: Path, final: Path) -> None:
    """Move a finished file to its final name in one step; it is on disk before it is visible."""
    with finished.open("rb+") as file:
        os.fsync(file.fileno())
    finished.chmod(0o644)  # temporary files are readable by their owner only; a cache may be shared
    check_replaceable(final)
    finished.replace(final)
    sync_folder(final.parent)


def move_aside(path: Path) -> Path:
    """Rename a broken file to the first free name of `NAME.broken`, `NAME.broken.1`, …, so that it can be examined."""
    names = (path.with_name(f"{path.name}.broken{f'.{i}' if i else ''}") for i in count())
    aside = next(name for name in names if not name.exists())
    try:
        path.rename(aside)
    except FileNotFoundError:
        pass  # another process was first
    except OSError as error:
        raise KclError(f"{path} is broken and cannot be moved aside: {error.strerror or error}") from error
    return aside


def usage() -> tuple[Path, int]:
    """The cache folder and the size in bytes of what can be made again."""
    folder = cache_dir()
    files = [path for name in DERIVED for path in (folder / name).rglob("*") if path.is_file()]
    return folder, sum(path.stat().st_size for path in files)


def clear() -> tuple[Path, int]:
    """Remove what can be made again, and return what `usage` said. Fetched files stay."""
    folder, size = usage()
    for name in DERIVED:
        try:
            if (folder / name).exists():
                shutil.rmtree(folder / name)
        except OSError as error:
            raise KclError(f"{folder / name} cannot be removed: {error.strerror or error}") from None
    return folder, size
