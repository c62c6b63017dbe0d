"""Files that are written whole or not at all, JSON with finite numbers only, and names of files in a run folder."""

from __future__ import annotations

import contextlib
import json
import math
import os
from pathlib import Path
from typing import Any, NoReturn

from kcl.core.locking import lock, remove_unowned
from kcl.core.opening import check_replaceable, regular
from kcl.errors import KclError

MAX_JSON_BYTES = 64 * 2**20

RESULTS = "results.jsonl"
"""One line per finished run."""
METRICS = "metrics.csv"
"""One row per run and learned task, written while the runs are training."""
SAMPLES = "samples.jsonl"
"""Images of tasks, coresets and mistakes, one line per run."""
STATUS = "standing.json"
"""Counts and workers of a command that an engine is running; removed when it ends."""


def write_json(path: str | Path, value: Any) -> None:
    """Write a JSON file whole or not at all."""
    try:
        text = json.dumps(value, allow_nan=False, ensure_ascii=False, indent=2).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise KclError(f"{path} was not written: {error}") from None
    write_whole(path, text + b"\n")


def read_json(path: str | Path) -> Any:
    """Read a JSON file of reasonable size with finite numbers only."""
    path = Path(path)
    try:
        with open(path, "rb", opener=regular) as file:
            content = file.read(MAX_JSON_BYTES + 1)
        if len(content) > MAX_JSON_BYTES:
            raise KclError(f"{path} is longer than {MAX_JSON_BYTES} bytes; kcl did not write it")
        return decode(content)
    except OSError as error:
        raise KclError(f"{path} could not be read: {error.strerror or error}") from None
    except (ValueError, RecursionError) as error:
        message = str(getattr(error, "msg", error))[:100]
        raise KclError(f"{path} is not valid JSON: {message}; fix it or move it away") from None


def write_whole(path: str | Path, content: bytes | bytearray) -> None:
    """Replace a file by `content`, so that a reader sees the old bytes or the new ones, never a part."""
    path = Path(path)
    draft = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        check_replaceable(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            _write_draft(draft, content)
            try:
                draft.replace(path)
            except FileNotFoundError:  # another process took it for left over, between its creation and its lock
                _write_draft(draft, content)
                draft.replace(path)
            sync_folder(path.parent)
        finally:
            draft.unlink(missing_ok=True)
    except OSError as error:
        raise KclError(f"{path} was not written: {error.strerror or error}") from None


def _write_draft(draft: Path, content: bytes | bytearray) -> None:
    draft.unlink(missing_ok=True)  # left by a process that was killed and had the same number
    with open(draft, "xb", opener=regular) as file:
        lock(file.fileno(), wait=False)  # `clear_drafts` leaves it alone
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def clear_drafts(folder: Path) -> None:
    """Remove the drafts of `write_whole` that killed processes left in a folder."""
    for draft in folder.glob(".*.[0-9]*.tmp"):
        remove_unowned(draft)


def sync_folder(folder: Path) -> None:
    """A new name survives a power cut only once its folder is on disk too. Not every system can sync a folder."""
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def decode(line: bytes) -> Any:
    """JSON with finite numbers only. Encoding it again finds text that no file can hold (lone surrogates)."""
    value = json.loads(line.decode(), parse_constant=_refuse, parse_float=_finite, parse_int=_whole)
    json.dumps(value, allow_nan=False, ensure_ascii=False).encode()
    return value


def _refuse(text: str) -> NoReturn:
    raise ValueError(f"the number {text[:40]} is not finite or too large")


def _finite(text: str) -> float:
    return number if math.isfinite(number := float(text)) else _refuse(text)


def _whole(text: str) -> int:
    return int(text) if len(text) <= 20 else _refuse(text)  # room for 64 bits
