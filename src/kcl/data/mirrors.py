"""Fetch published files from web mirrors, each verified before it is handed on.

Timeouts are short so that a machine without a network learns so soon: a large host answers from several addresses, and
each of them is waited for in turn.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from kcl.errors import KclError

CONNECT_SECONDS = 3.0
READ_SECONDS = 15.0
ATTEMPTS = 2
CHUNK_BYTES = 1 << 16


class PublishedFile(NamedTuple):
    """A file as its authors publish it."""

    name: str
    md5: str
    size: int


def fetch(
    files: Sequence[PublishedFile], mirrors: Sequence[str], folder: Path, say: Callable[[str], None]
) -> Iterator[Path]:
    """Yield each file's path in `folder` as it arrives; KclError when no mirror delivers the next one.

    A mirror that fails once is not asked for later files, so that its timeout is waited for only once.
    """
    try:
        import pooch  # noqa: F401
    except ImportError:
        raise KclError("the package pooch, which downloads, is missing (pip install pooch)") from None
    reachable = list(mirrors)
    for file in files:
        while reachable:
            try:
                path = _retrieve(reachable[0] + file.name, file, folder, say)
            except _Failed as error:
                say(f"{reachable.pop(0)} does not deliver {file.name}: {error}")
            else:
                yield path
                break
        else:
            raise KclError(f"no web mirror delivers {file.name}")


class _Failed(Exception):
    """One mirror did not deliver; `again` says whether another attempt could help."""

    def __init__(self, reason: str, again: bool) -> None:
        super().__init__(reason)
        self.again = again


def _retrieve(url: str, file: PublishedFile, folder: Path, say: Callable[[str], None]) -> Path:
    import pooch

    say(f"downloading {url} ({file.size / 1e6:.1f} MB)")
    for attempt in range(ATTEMPTS):
        try:
            with _silenced(pooch.get_logger()):
                path = pooch.retrieve(
                    url, f"md5:{file.md5}", fname=file.name, path=folder, downloader=_downloader(file.size)
                )
            return Path(path)
        except ValueError:  # pooch: the checksum differs
            failure = _Failed("what it sent does not have the official md5", again=True)
        except _Failed as error:
            failure = error
        if not failure.again or attempt == ATTEMPTS - 1:
            break
    raise failure


def _downloader(limit: int) -> Callable[[str, str, object], None]:
    """A downloader for pooch that stops after `limit` bytes and keeps the body as it was sent.

    pooch's own would unpack a body that the server declares gzip-encoded, as some declare every `.gz` file, and the
    checksum would be that of another file; it would also follow an endless body until the disk is full.
    """

    def download(url: str, output_file: str, _pooch: object) -> None:
        import requests
        import urllib3

        written = 0
        try:
            with requests.get(url, stream=True, timeout=(CONNECT_SECONDS, READ_SECONDS)) as response:
                if response.status_code != requests.codes.ok:
                    raise _Failed(f"it answers with status {response.status_code}", again=False)
                with Path(output_file).open("wb") as out:
                    for chunk in response.raw.stream(CHUNK_BYTES, decode_content=False):
                        written += len(chunk)
                        if written > limit:
                            raise _Failed(f"it sends more than the {limit} bytes of the official file", again=False)
                        out.write(chunk)
        except requests.RequestException as error:
            raise _Failed(f"it cannot be reached ({type(error).__name__})", again=False) from None
        except urllib3.exceptions.HTTPError as error:
            raise _Failed(f"the connection broke ({type(error).__name__})", again=True) from None

    return download


@contextmanager
def _silenced(logger: logging.Logger) -> Iterator[None]:
    """pooch logs to stderr; only `say` may report."""
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)
