"""Jobs that fail: retried on another worker a limited number of times, then given up and listed."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import torch

from kcl.core.files import write_whole
from kcl.engines import RETRIES
from kcl.engines.job import Job, Message

LOGS = "logs"
"""The folder, next to the results, for the logs of runs that failed."""
MAX_LOG = 100_000


class Failure(NamedTuple):
    """Runs that were given up."""

    label: str
    runs: int
    error: str
    log: Path


@dataclass
class _History:
    """The attempts at one job."""

    without_progress: int = 0
    tasks: int = 0
    tasks_before: int = 0
    log: str = ""


class Attempts:
    """Counts the failed attempts at each job; an attempt that learned more tasks than before resets the count."""

    def __init__(self, logs: Path, retries: int = RETRIES) -> None:
        self._logs, self._retries = logs, retries
        self._jobs: dict[str, _History] = {}
        self.given_up: list[Failure] = []

    def learned(self, name: str, tasks: int) -> None:
        """A job has learned so many tasks."""
        history = self._jobs.setdefault(name, _History())
        history.tasks = max(history.tasks, tasks)

    def failed(self, job: Job, label: str, worker: str, message: Message) -> Job | None:
        """The next attempt, or None if the job is given up."""
        history, error = self._jobs.setdefault(job.name, _History()), str(message.get("error", "it was lost"))
        entry = f"attempt {job.attempt + 1} on {worker}: {error}\n{message.get('log', '')}"
        history.log = (history.log + entry)[-MAX_LOG:]
        history.without_progress = 0 if history.tasks > history.tasks_before else history.without_progress + 1
        history.tasks_before = history.tasks
        if history.without_progress <= self._retries:
            return job.next_attempt()
        path = self._logs / f"{job.name}.log"
        write_whole(path, history.log.encode(errors="replace"))
        self.given_up.append(Failure(label, len(job.runs), error, path))
        return None

    def done(self, name: str) -> None:
        self._jobs.pop(name, None)


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
