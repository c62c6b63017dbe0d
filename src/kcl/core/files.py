"""Files that appear whole or not at all, and JSON that holds finite numbers only."""

from __future__ import annotations

import contextlib
import json
import math
import os
from pathlib import Path
from typing import Any, NoReturn

from kcl.errors import KclError

MAX_JSON_BYTES = 64 * 2**20


def write_json(path: str | Path, value: Any) -> None:
    """Writes one JSON file whole or not at all."""
    try:
        text = json.dumps(value, allow_nan=False, ensure_ascii=False, indent=2).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise KclError(f"{path} was not written: {error}") from None
    write_whole(path, text + b"\n")


def read_json(path: str | Path) -> Any:
    """A JSON file as `write_json` writes it, of a size that a person could have made."""
    path = Path(path)
    try:
        if path.stat().st_size > MAX_JSON_BYTES:
            raise KclError(f"{path} is longer than {MAX_JSON_BYTES} bytes; this is not what kcl wrote")
        return decode(path.read_bytes())
    except OSError as error:
        raise KclError(f"{path} could not be read: {error.strerror or error}") from None
    except (ValueError, RecursionError) as error:
        told = getattr(error, "msg", error)
        raise KclError(f"{path} is not whole: {str(told)[:100]}; mend it or move it away") from None


def write_whole(path: str | Path, content: bytes | bytearray) -> None:
    """Replaces a file by `content`, so that a reader sees the old bytes or the new ones, never a part."""
    path = Path(path)
    draft = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with draft.open("wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            draft.replace(path)
            _sync_folder(path.parent)
        finally:
            draft.unlink(missing_ok=True)
    except OSError as error:
        raise KclError(f"{path} was not written: {error.strerror or error}") from None


def _sync_folder(folder: Path) -> None:
    """A new name outlives a power cut only when its folder is on the disk too. Not every system can be asked."""
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def decode(line: bytes) -> Any:
    """JSON with finite numbers only. Encoding it again finds text that no file could hold (lone surrogates)."""
    value = json.loads(line.decode(), parse_constant=_refuse, parse_float=_finite, parse_int=_whole)
    json.dumps(value, allow_nan=False, ensure_ascii=False).encode()
    return value


def _refuse(text: str) -> NoReturn:
    raise ValueError(f"the number {text[:40]} is not finite or too large")


def _finite(text: str) -> float:
    return number if math.isfinite(number := float(text)) else _refuse(text)


def _whole(text: str) -> int:
    return int(text) if len(text) <= 20 else _refuse(text)  # room for 64 bits
