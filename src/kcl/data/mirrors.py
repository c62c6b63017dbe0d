"""Fetch published files from web mirrors, each verified before it is handed on.

Timeouts are short so that a machine without a network learns so soon: a large host answers from several addresses, and
each of them is waited for in turn.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from kcl.data.file_cache import Say
from kcl.errors import KclError

CONNECT_SECONDS = 3.0
READ_SECONDS = 15.0
CHUNK_BYTES = 1 << 16


class PublishedFile(NamedTuple):
    """A file as its authors publish it."""

    name: str
    md5: str
    size: int


def fetch(files: Sequence[PublishedFile], mirrors: Sequence[str], folder: Path, say: Say) -> Iterator[Path]:
    """Yield each file's path in `folder` as it arrives; KclError when no mirror delivers the next one.

    A mirror that fails once is not asked for later files, so that its timeout is waited for only once.
    """
    reachable = list(mirrors)
    for file in files:
        path = folder / file.name
        while reachable:
            url = reachable[0] + file.name
            say(f"downloading {url} ({file.size / 1e6:.1f} MB)")
            try:
                try:
                    _download(url, file, path)
                except _Damaged:
                    _download(url, file, path)
            except KclError as error:
                path.unlink(missing_ok=True)
                say(f"{reachable.pop(0)} does not deliver {file.name}: {error}")
            else:
                yield path
                break
        else:
            raise KclError(f"no web mirror delivers {file.name}")


class _Damaged(KclError):
    """What arrived is not the file; another attempt may help."""


def _download(url: str, file: PublishedFile, path: Path) -> None:
    """The body as it was sent: some servers declare every `.gz` file gzip-encoded, and unpacked it is another file."""
    try:
        import requests
        import urllib3
    except ImportError:
        raise KclError("the package requests, which downloads, is missing: pip install requests") from None
    md5, left = hashlib.md5(usedforsecurity=False), file.size
    try:
        with (
            requests.get(url, stream=True, timeout=(CONNECT_SECONDS, READ_SECONDS)) as response,
            path.open("wb") as out,
        ):
            if response.status_code != requests.codes.ok:
                raise KclError(f"it answers with status {response.status_code}")
            for chunk in response.raw.stream(CHUNK_BYTES, decode_content=False):
                left -= len(chunk)
                if left < 0:
                    raise KclError(f"it sends more than the {file.size} bytes of the official file")
                md5.update(chunk)
                out.write(chunk)
    except requests.RequestException as error:
        raise KclError(f"it cannot be reached ({type(error).__name__})") from None
    except urllib3.exceptions.HTTPError as error:
        raise _Damaged(f"the connection broke ({type(error).__name__})") from None
    if md5.hexdigest() != file.md5:
        raise _Damaged("what it sent does not have the official md5")
