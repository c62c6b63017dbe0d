"""Runs that failed: the error in one line, where its log is, and how to try again."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import torch

LOGS = "logs"
"""The folder, next to the results, for the logs of runs that failed."""


class Failure(NamedTuple):
    """Runs that were given up."""

    label: str
    runs: int
    error: str
    log: Path


def first_line(error: BaseException) -> str:
    """An unexpected error in one line, with advice where there is some."""
    line = f"{type(error).__name__}: {error}".splitlines()[0]
    return f"{line}; try smaller settings or --runs-at-once" if out_of_memory(error) else line


def out_of_memory(error: BaseException) -> bool:
    by_type = isinstance(error, MemoryError | torch.OutOfMemoryError)
    return by_type or (isinstance(error, RuntimeError) and "allocate memory" in str(error))


def describe_failures(failures: Sequence[Failure], command: str, most: int = 20) -> str:
    """What failed, where the logs are, and how to try again."""
    count = sum(failure.runs for failure in failures)
    lines = [f"{count} run{'' if count == 1 else 's'} failed:"]
    lines += [f"  {failure.label}: {failure.error}; log: {failure.log}" for failure in failures[:most]]
    if len(failures) > most:
        lines.append(f"  and {len(failures) - most} more groups")
    again = command if "--resume" in shlex.split(command) else command + " --resume"
    return "\n".join([*lines, f"to try them again: {again}"])
