"""Checkpoints without a shared folder: copied to an fsspec URL (s3://, gs://, file://, …) and fetched from there.

A checkpoint is written to the local disk first and then copied under the same name. Its digest shows whether a copy is
complete; if it is not, the checkpoint before it is used.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from kcl.core.packages import load_package
from kcl.errors import KclError
from kcl.training.checkpoint import Saved
from kcl.training.checkpointer import KEPT, Checkpointer, clear, numbered


def open_url(url: str) -> tuple[Any, str]:
    """The file system of a URL and the path in it."""
    fsspec = load_package("fsspec", "remote", f"{url} needs fsspec")
    try:
        files, path = fsspec.core.url_to_fs(url)
    except (ImportError, ValueError, OSError) as error:
        raise KclError(f"{url} cannot be opened: {error}") from None
    return files, path.rstrip("/")


class MirroringCheckpointer(Checkpointer):
    """Also copies every checkpoint to a URL, if there is one. A copy that fails is reported; the run continues."""

    def __init__(self, url: str | None, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._url = url

    def save(self, state: Callable[[], Saved]) -> None:
        super().save(state)
        if self.folder is not None and self._url is not None:
            try:
                push(self._url, self.folder)
            except Exception as error:  # every file system raises its own exceptions
                self.say(f"the checkpoint could not be copied to {self._url} ({error}); the run continues")


def push(url: str, folder: Path) -> None:
    """Copy the newest checkpoint of a group, and remove copies that are too old to be kept."""
    files, root = open_url(url)
    copies = f"{root}/{folder.name}"
    for path in numbered(folder)[-1:]:
        files.makedirs(copies, exist_ok=True)
        files.put_file(str(path), f"{copies}/{path.name}")
    for old in _names(files, copies)[:-KEPT]:
        files.rm_file(f"{copies}/{old}")


def pull(url: str | None, folder: Path) -> None:
    """Fetch the checkpoints of a group that are newer than the local ones."""
    if url is None:
        return
    files, root = open_url(url)
    newest_local = max((path.name for path in numbered(folder)), default="")
    for name in _names(files, f"{root}/{folder.name}"):
        if name > newest_local:
            folder.mkdir(parents=True, exist_ok=True)
            draft = folder / f".{name}.{os.getpid()}.tmp"
            draft.unlink(missing_ok=True)
            files.get_file(f"{root}/{folder.name}/{name}", str(draft))
            draft.replace(folder / name)


def pull_all(url: str | None, checkpoints: Path) -> None:
    """Fetch the checkpoints of all groups."""
    if url is None:
        return
    files, root = open_url(url)
    try:
        files.invalidate_cache()
        if files.exists(root):
            for folder in files.ls(root, detail=False):
                pull(url, checkpoints / folder.rstrip("/").rpartition("/")[2])
    except Exception as error:  # every file system raises its own exceptions
        raise KclError(f"the checkpoints at {url} cannot be fetched: {type(error).__name__}: {error}") from None


def forget(folder: Path, url: str | None = None) -> None:
    """Remove the checkpoints of a group whose results are stored, and their copies. Leftovers do no harm."""
    clear(folder)
    with suppress(OSError):  # other groups may have theirs there
        folder.parent.rmdir()
    if url is not None:
        with suppress(Exception):  # every file system raises its own exceptions
            files, root = open_url(url)
            files.rm(f"{root}/{folder.name}", recursive=True)


def _names(files: Any, folder: str) -> list[str]:
    """The checkpoints of a group, oldest first: their names are numbers of equal length."""
    files.invalidate_cache()
    try:
        names = [path.rpartition("/")[2] for path in files.ls(folder, detail=False)]
    except FileNotFoundError:
        return []
    return sorted(name for name in names if name.endswith(".safetensors") and name[:8].isdecimal())
