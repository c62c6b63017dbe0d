"""Orders that did not end well: tried again, elsewhere, a bounded number of times; what is given up is listed."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import torch

from kcl.core.files import write_whole
from kcl.engines import RETRIES
from kcl.engines.job import Message, Order

LOGS = "logs"
"""The folder, beside the results, for what is known of runs that failed."""


class Failure(NamedTuple):
    """Runs given up."""

    label: str
    runs: int
    error: str
    log: Path


class Attempts:
    """How often each order was tried in vain: an attempt that came further than those before it was not in vain."""

    def __init__(self, logs: Path, retries: int = RETRIES) -> None:
        self._logs, self._retries = logs, retries
        self._vain: dict[str, int] = {}
        self._before: dict[str, int] = {}
        self._learned: dict[str, int] = {}
        self._text: dict[str, str] = {}
        self.given_up: list[Failure] = []

    def learned(self, name: str, tasks: int) -> None:
        """An order has come so far."""
        self._learned[name] = max(self._learned.get(name, 0), tasks)

    def failed(self, order: Order, label: str, worker: str, message: Message) -> Order | None:
        """The next attempt; None where there is none."""
        name, error = order.name, str(message.get("error", "it was lost"))
        self._note(name, f"attempt {order.attempt + 1} on {worker}: {error}\n{message.get('log', '')}")
        further = self._learned.get(name, 0) > self._before.get(name, 0)
        self._before[name] = self._learned.get(name, 0)
        self._vain[name] = 0 if further else self._vain.get(name, 0) + 1
        if self._vain[name] <= self._retries:
            return order.again()
        log = self._logs / f"{name}.log"
        write_whole(log, self._text[name].encode(errors="replace"))
        self.given_up.append(Failure(label, len(order.runs), error, log))
        return None

    def done(self, name: str) -> None:
        for kept in (self._vain, self._before, self._learned, self._text):
            kept.pop(name, None)

    def _note(self, name: str, text: str) -> None:
        self._text[name] = (self._text.get(name, "") + text)[-100_000:]


def first_line(error: BaseException) -> str:
    """An error nobody expected, in a line; of one that a user can do something about, what that is."""
    told = f"{type(error).__name__}: {error}".splitlines()[0]
    return f"{told}; try smaller settings or --runs-at-once" if out_of_memory(error) else told


def out_of_memory(error: BaseException) -> bool:
    by_name = isinstance(error, MemoryError | torch.OutOfMemoryError)
    return by_name or (isinstance(error, RuntimeError) and "allocate memory" in str(error))


def listed(failures: Sequence[Failure], command: str, most: int = 20) -> str:
    """What failed, where its log is, and how to try again."""
    count = sum(failure.runs for failure in failures)
    lines = [f"{count} run{'' if count == 1 else 's'} failed:"]
    lines += [f"  {own.label}: {own.error}; log: {own.log}" for own in failures[:most]]
    lines += [f"  and {len(failures) - most} more groups" for _ in failures[most : most + 1]]
    again = command if "--resume" in shlex.split(command) else command + " --resume"
    return "\n".join([*lines, f"to try them again: {again}"])
