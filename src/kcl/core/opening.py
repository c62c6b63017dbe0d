"""Only regular files are opened and replaced.

A pipe or a device can block or be read for ever, and a symbolic link in a folder that others may write to would lead
what is written to a file of their choice. Links are followed for reading, where they are a common way to share data.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from kcl.errors import KclError

_SAFELY = getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOCTTY", 0) | getattr(os, "O_CLOEXEC", 0)
_NO_LINK = getattr(os, "O_NOFOLLOW", 0)
_WRITING = os.O_WRONLY | os.O_RDWR
_KINDS = {stat.S_IFLNK: "a symbolic link", stat.S_IFDIR: "a folder", stat.S_IFREG: "a file"}


def regular(path: str | os.PathLike[str], flags: int) -> int:
    """The `opener` of every file that is not private to kcl. OSError says what is not a file."""
    try:
        descriptor = os.open(path, flags | _SAFELY | (_NO_LINK if flags & _WRITING else 0), 0o666)
    except OSError as error:
        if error.errno not in (errno.ENOENT, errno.EEXIST):  # say it more clearly than the system
            _check(Path(path).stat(follow_symlinks=error.errno != errno.ELOOP).st_mode, path)
        raise
    try:
        _check(os.fstat(descriptor).st_mode, path)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


@contextmanager
def reading(path: Path, what: str = "", *flaws: type[Exception]) -> Iterator[None]:
    """Failures to read a file become a message that names it; `flaws` are raised where it is not what it should be."""
    try:
        yield
    except flaws as error:
        raise KclError(f"{path} is not {what}: {brief(error)}") from None
    except OSError as error:
        raise KclError(f"{error.filename or path} cannot be read: {error.strerror or brief(error)}") from None


def brief(message: object) -> str:
    """What a library says, on one line of reasonable length."""
    return " ".join(str(message).split())[:200]


def check_readable(path: Path) -> None:
    """Raise OSError unless a library that opens the path itself would open a regular file."""
    os.close(regular(path, os.O_RDONLY))


def check_replaceable(path: Path) -> None:
    """Raise OSError if a file that is renamed to `path` would replace anything but a regular file."""
    try:
        _check(path.lstat().st_mode, path)
    except FileNotFoundError:
        return


def _check(mode: int, path: str | os.PathLike[str]) -> None:
    if not stat.S_ISREG(mode):
        kind = _KINDS.get(stat.S_IFMT(mode), "a pipe or a device")
        raise OSError(errno.EINVAL, f"it is {kind}, not a regular file", os.fspath(path))
