"""SIGINT, SIGTERM, SIGHUP: the first stops runs where they can be resumed, the second ends the process at once."""

from __future__ import annotations

import os
import signal
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

SIGNALS = ("SIGINT", "SIGTERM", "SIGHUP")


class Interrupted(KeyboardInterrupt):
    """A signal asked the process to stop."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


def exit_code(interrupt: KeyboardInterrupt) -> int:
    """The convention of shells: 130 after Ctrl-C, 143 after SIGTERM, 129 after a terminal was closed."""
    return 128 + (interrupt.number if isinstance(interrupt, Interrupted) else signal.SIGINT)


class Stop:
    """The signal received, if any. By default it interrupts at once; while runs are learning (`deferred`) it waits for
    the next `check`.
    """

    def __init__(self) -> None:
        self.signal: int | None = None
        self._deferred = False

    def check(self) -> None:
        if self.signal is not None:
            raise Interrupted(self.signal)

    @contextmanager
    def deferred(self, deferred: bool = True) -> Iterator[None]:
        """In here, a signal is only recorded; within that, `deferred(False)` lets it interrupt at once again."""
        before, self._deferred = self._deferred, deferred
        try:
            if not deferred:
                self.check()
            yield
        finally:
            self._deferred = before

    @contextmanager
    def listening(self) -> Iterator[Stop]:
        """Handle signals in here. Only possible in the main thread; without effect in others."""
        before = {}
        try:
            for number in (getattr(signal, name) for name in SIGNALS if hasattr(signal, name)):  # Windows has no SIGHUP
                if signal.getsignal(number) is not signal.SIG_IGN:  # otherwise the parent process wants it ignored
                    before[number] = signal.signal(number, self._receive)
        except ValueError:
            pass
        try:
            yield self
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _receive(self, number: int, _: Any) -> None:
        if self.signal is not None:
            if number == getattr(signal, "SIGHUP", None):  # shell and system both tell that a terminal was closed
                return
            os.write(2, b"kcl: stopped at once\n")
            os._exit(128 + number)
        self.signal = number
        _leave_closed_terminals()
        if not self._deferred:
            raise Interrupted(number)


def _leave_closed_terminals() -> None:
    """Writing to a terminal that was closed fails, which must not keep runs from being saved: write nowhere instead."""
    for descriptor in (1, 2):
        with suppress(OSError):
            if stat.S_ISCHR(os.fstat(descriptor).st_mode) and not os.isatty(descriptor):
                nowhere = os.open(os.devnull, os.O_WRONLY)
                os.dup2(nowhere, descriptor)
                os.close(nowhere)
