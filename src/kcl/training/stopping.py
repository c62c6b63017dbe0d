"""SIGINT and SIGTERM: the first asks the runs to stop where they can go on from, the second ends everything at once."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

SIGNALS = ("SIGINT", "SIGTERM")


class Interrupted(KeyboardInterrupt):
    """A signal asked the process to stop."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


def exit_code(interrupt: KeyboardInterrupt) -> int:
    """As shells have it: 130 after Ctrl-C, 143 after SIGTERM."""
    return 128 + (interrupt.number if isinstance(interrupt, Interrupted) else signal.SIGINT)


class Stop:
    """Whether a signal has come. Where nothing needs care it interrupts at once; while runs are learning it waits to
    be asked (`check`).
    """

    def __init__(self) -> None:
        self.signal: int | None = None
        self._careful = False

    def check(self) -> None:
        if self.signal is not None:
            raise Interrupted(self.signal)

    @contextmanager
    def deferred(self) -> Iterator[None]:
        """A signal that comes now is only noted."""
        before, self._careful = self._careful, True
        try:
            yield
        finally:
            self._careful = before

    @contextmanager
    def promptly(self) -> Iterator[None]:
        """Within `deferred`, where nothing needs care again: a signal interrupts at once."""
        before, self._careful = self._careful, False
        try:
            self.check()
            yield
        finally:
            self._careful = before

    @contextmanager
    def listening(self) -> Iterator[Stop]:
        """Answer signals in here. In a thread that is not the main one Python lets nobody listen."""
        before = {}
        try:
            for name in SIGNALS:
                number = getattr(signal, name)
                if signal.getsignal(number) is not signal.SIG_IGN:  # whoever started us wants it ignored
                    before[number] = signal.signal(number, self._note)
        except ValueError:
            pass
        try:
            yield self
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _note(self, number: int, _: Any) -> None:
        if self.signal is not None:
            os.write(2, b"kcl: stopped at once\n")
            os._exit(128 + number)
        self.signal = number
        if not self._careful:
            raise Interrupted(number)
