"""`results.jsonl`: one JSON object per line, one line per finished run. Whole lines in, checked records out.

A crash can tear the last line and costs that line only. Any other flaw is an error that names the file and the line.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

from kcl.core.files import decode, sync_folder
from kcl.core.locking import lock
from kcl.core.metrics import AccuracyMatrix
from kcl.core.opening import regular
from kcl.errors import KclError

FORMAT = 1
MAX_LINE_BYTES = 128 * 2**20
MOST_TASKS = 3000
"""So that the accuracy matrix, of up to 19 characters per number and 6 per null, fits in a line."""

_METRICS = ("average_accuracy", "forgetting", "learning_accuracy", "backward_transfer", "forward_transfer")
_NULL = type(None)
# Every field of format 1 and the types JSON may give it. Other fields are kept as they are.
_FIELDS: dict[str, tuple[type, ...]] = {
    **dict.fromkeys(("format", "seed", "tasks"), (int,)),
    **dict.fromkeys(("benchmark", "method", "device"), (str,)),
    **dict.fromkeys(("settings", "versions", "memory"), (dict,)),
    **dict.fromkeys(("kernel", "command"), (str, _NULL)),
    "diverged": (bool,),
    "seconds": (int, float),
    "accuracy_matrix": (list,),
    "initial_accuracy": (list, _NULL),
    **dict.fromkeys(_METRICS, (int, float, _NULL)),
}
# Allowed difference between a stored metric and the one computed from its matrix: rounding, but no contradiction.
_PERCENT_TOLERANCE, _FRACTION_TOLERANCE = 0.1, 0.001


def append(path: str | Path, *records: dict[str, Any]) -> None:
    """Append runs, each as one line: checked, written at once, and on disk when this returns."""
    path, content = Path(path), b""
    try:
        lines = [json.dumps(record, allow_nan=False, ensure_ascii=False).encode() for record in records]
        for line in lines:
            if len(line) >= MAX_LINE_BYTES:
                raise KclError(f"its record is longer than {MAX_LINE_BYTES} bytes")
            check(decode(line))
        content = b"".join(line + b"\n" for line in lines)
    except (KclError, TypeError, ValueError, RecursionError) as error:
        raise KclError(f"a run could not be saved to {path}: {error}") from None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(path, "a+b", buffering=0, opener=regular) as file:
            lock(file.fileno(), wait=True)  # or a second process would repair a line that this one is still writing
            end = _repair(file, path)
            try:
                if file.write(content) != len(content):
                    raise OSError("no space left for the whole line")
                os.fsync(file.fileno())
                if end == 0:
                    sync_folder(path.parent)
            except OSError:
                file.truncate(end)
                raise
    except OSError as error:
        raise KclError(f"a run could not be saved to {path}: {error.strerror or error}") from None


def read(path: str | Path, warn: Callable[[str], None] | None = None) -> list[dict[str, Any]]:
    """All runs of a file, in order. A torn last line is skipped and reported to `warn`."""
    path = Path(path)
    records: list[dict[str, Any]] = []
    try:
        with open(path, "rb", opener=regular) as file:
            for number, line in enumerate(iter(lambda: file.readline(MAX_LINE_BYTES + 1), b""), start=1):
                where = f"{path}, line {number}"
                if len(line) > MAX_LINE_BYTES:
                    raise KclError(f"{where}: longer than {MAX_LINE_BYTES} bytes; this is not a results file")
                try:
                    record = decode(line)
                    check(record)
                except (KclError, ValueError, RecursionError) as error:
                    if line.endswith(b"\n") or isinstance(error, KclError):
                        # A JSON error's own text counts lines from this one; its `msg` does not.
                        raise KclError(f"{where}: {getattr(error, 'msg', error)}; fix or delete the line") from None
                    if warn is not None:
                        warn(f"{where}: the last line is incomplete and was ignored; repeat its run")
                    break
                records.append(record)
    except OSError as error:
        raise KclError(f"{path} could not be read: {error.strerror or error}; give a file `kcl run` wrote") from None
    return records


def check(record: Any) -> None:
    """Raise KclError unless the record has format 1, is complete, and its metrics agree with its matrix."""
    if not isinstance(record, dict):
        raise KclError("expected a JSON object, one run")
    if record.get("format") != FORMAT:
        raise KclError(f"record format {str(record.get('format'))[:40]!r}; this version of kcl reads format {FORMAT}")
    for name, types in _FIELDS.items():
        if name not in record:
            raise KclError(f"the field {name!r} is missing")
        if type(record[name]) not in types:  # not isinstance: a bool is no number here
            expected = " or ".join("null" if kind is _NULL else kind.__name__ for kind in types)
            raise KclError(f"the field {name!r} is {type(record[name]).__name__}; expected {expected}")
    for name in ("benchmark", "method", "kernel"):
        value = record[name]
        if value is not None and not (value.isprintable() and 0 < len(value) <= 100):
            raise KclError(f"the field {name!r} is {value[:40]!r}; expected a printable name of 1 to 100 characters")
    if record["seconds"] < 0:
        raise KclError(f"the field 'seconds' is {record['seconds']}; expected no negative time")
    _check_metrics(record)


def _check_metrics(record: dict[str, Any]) -> None:
    matrix = AccuracyMatrix.from_lists(record["accuracy_matrix"])
    if matrix.task_count != record["tasks"]:
        raise KclError(f"the accuracy matrix has {matrix.task_count} rows for {record['tasks']} tasks")
    if record["average_accuracy"] is None and not record["diverged"]:
        raise KclError("the field 'average_accuracy' is null, but the run did not diverge")
    for name, derived in matrix.summary(record["initial_accuracy"]).items():
        stored = record.get(name)  # metrics added since are not in older files
        tolerance = _PERCENT_TOLERANCE if name.endswith("_accuracy") else _FRACTION_TOLERANCE
        if stored is not None and (derived is None or abs(stored - derived) > tolerance):
            raise KclError(f"the field {name!r} is {stored}, but the accuracy matrix gives {derived}")


def _repair(file: BinaryIO, path: Path) -> int:
    """End a last line that a crash left open: complete it if it is whole, cut it off if it is torn. Returns the end."""
    end = file.seek(0, os.SEEK_END)
    start = max(0, end - MAX_LINE_BYTES)
    file.seek(max(0, end - 1))
    if file.read(1) in (b"", b"\n"):
        return end
    file.seek(start)
    last_line = file.read(end - start).rpartition(b"\n")[2]
    file.seek(0)
    if file.read(1) != b"{" or len(last_line) == MAX_LINE_BYTES:
        raise KclError(f"{path} is not a results file and was left unchanged; choose another file")
    try:
        decode(last_line)
    except (ValueError, RecursionError):
        return file.truncate(end - len(last_line))
    return end + file.write(b"\n")
