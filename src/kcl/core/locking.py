"""One process at a time in an output folder, and what killed processes left behind."""

from __future__ import annotations

import glob
import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from kcl.core.opening import regular
from kcl.errors import KclError

NAME = ".lock"


@contextmanager
def locked(folder: Path, name: str = NAME) -> Iterator[None]:
    """Lock a folder, creating it if need be; KclError with the process number if another process holds it.

    The system releases the lock of a process that dies for whatever reason; a lock file left behind means nothing.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        descriptor = _take(folder / name)
    except OSError as error:
        where = f"{error.filename}: " if error.filename == str(folder / name) else ""
        reason = error.strerror or error
        raise KclError(f"cannot write to the output folder {folder}: {where}{reason}") from None
    try:
        yield
    finally:
        with suppress(OSError):
            (folder / name).unlink()  # while it is still ours
        os.close(descriptor)


def _take(path: Path) -> int:
    while True:
        created, descriptor = _open(path)
        try:
            ours = lock(descriptor, wait=False)
            if ours is False:
                raise KclError(
                    f"{path.parent} is in use by another kcl, process {_owner(descriptor)}; "
                    "wait until it ends or choose another folder"
                )
            if ours is None and not created:
                raise KclError(
                    f"{path.parent} may be in use by another kcl, process {_owner(descriptor)}: this file system has "
                    f"no locks to tell by; if no kcl works there any more, delete {path} and try again"
                )
            if _is_still_at(path, descriptor):
                os.ftruncate(descriptor, 0)
                os.write(descriptor, str(os.getpid()).encode())
                return descriptor
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)  # the previous holder has just removed the file: try again


def _open(path: Path) -> tuple[bool, int]:
    """Whether the file is new, and its descriptor."""
    while True:
        with suppress(FileExistsError):
            return True, regular(path, os.O_RDWR | os.O_CREAT | os.O_EXCL)
        with suppress(FileNotFoundError):  # removed in the meantime
            return False, regular(path, os.O_RDWR)


def lock(descriptor: int, wait: bool) -> bool | None:
    """Whether the lock is ours now; None if the operating or file system has no locks."""
    try:
        import fcntl

        fcntl.flock(descriptor, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except (ImportError, OSError):
        return None
    return True


@contextmanager
def private_folder(parent: Path, prefix: str, mode: int = 0o700) -> Iterator[Path]:
    """A new folder that is removed afterwards, unless it was renamed. Those that killed processes left go now."""
    for left in parent.glob(f"{glob.escape(prefix)}*"):
        remove_unowned(left)
    folder, descriptor = _make_folder(parent, prefix, mode)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        if descriptor is not None:
            os.close(descriptor)


def _make_folder(parent: Path, prefix: str, mode: int) -> tuple[Path, int | None]:
    """A new folder and the descriptor that holds its lock; None on Windows, which opens no folders."""
    while True:
        folder = parent / f"{prefix}{secrets.token_hex(4)}"
        folder.mkdir(mode)
        if os.name != "posix":
            return folder, None
        with suppress(FileNotFoundError):  # another process took it for left over
            descriptor = os.open(folder, os.O_RDONLY)
            lock(descriptor, wait=True)
            if _is_still_at(folder, descriptor):
                return folder, descriptor
            os.close(descriptor)


def remove_unowned(path: Path) -> None:
    """Remove a file or folder that its maker locks while it needs it, if the maker is gone. Errors do no harm."""
    with suppress(OSError):
        descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0))
        try:
            if lock(descriptor, wait=False):
                shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink(missing_ok=True)
        finally:
            os.close(descriptor)


def _is_still_at(path: Path, descriptor: int) -> bool:
    try:
        return os.path.samestat(path.stat(), os.fstat(descriptor))
    except FileNotFoundError:
        return False


def _owner(descriptor: int) -> str:
    text = os.pread(descriptor, 20, 0).decode(errors="replace").strip()
    return text if text.isdecimal() else "unknown"
