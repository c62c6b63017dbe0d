"""One process at a time in an output folder."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

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
        raise KclError(f"cannot write to the output folder {folder}: {error.strerror or error}") from None
    try:
        yield
    finally:
        with suppress(OSError):
            (folder / name).unlink()  # while it is still ours
        os.close(descriptor)


def _take(path: Path) -> int:
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            if not lock(descriptor, wait=False):
                raise KclError(
                    f"{path.parent} is in use by another kcl, process {_owner(descriptor)}; "
                    "wait until it ends or choose another folder"
                )
            if _is_still_at(path, descriptor):
                os.ftruncate(descriptor, 0)
                os.write(descriptor, str(os.getpid()).encode())
                return descriptor
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)  # the previous holder has just removed the file: try again


def lock(descriptor: int, wait: bool) -> bool:
    """Whether the lock is ours now. Without locks in the operating or file system, everyone gets it."""
    try:
        import fcntl

        fcntl.flock(descriptor, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except (ImportError, OSError):
        pass
    return True


def _is_still_at(path: Path, descriptor: int) -> bool:
    try:
        return os.path.samestat(path.stat(), os.fstat(descriptor))
    except FileNotFoundError:
        return False


def _owner(descriptor: int) -> str:
    text = os.pread(descriptor, 20, 0).decode(errors="replace").strip()
    return text if text.isdecimal() else "unknown"
