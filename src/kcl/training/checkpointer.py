"""When the state of runs is saved, and where: the last two checkpoints of a group, in a folder of its own."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from kcl.errors import KclError
from kcl.training import checkpoint
from kcl.training.checkpoint import Saved
from kcl.training.stopping import Stop

KEPT = 2
SHARE = 100
"""Where the user does not say how often: a save is due when a hundred times what the last one took has passed, so that
saving takes less than a hundredth of the run.
"""
FIRST_GUESS = 0.05
"""Seconds the first save is taken to cost."""


class Every(NamedTuple):
    """How often runs are saved: after so many steps, or so many seconds; never where both are None."""

    steps: int | None = None
    seconds: float | None = 300.0
    thrifty: bool = True
    """Chosen by us, not by the user: also after a task, but never at a cost of more than a hundredth."""

    @property
    def never(self) -> bool:
        return self.steps is None and self.seconds is None


class Checkpointer:
    """Saves a group of runs now and then, and when it is asked to stop. Without a folder it only heeds the signals.

    All times are from a clock that never goes back, and the newest checkpoint is the one with the highest number: no
    date is looked at.
    """

    def __init__(
        self,
        folder: Path | None = None,
        about: dict[str, Any] | None = None,
        every: Every = Every(),  # noqa: B008 - it cannot be changed
        stop: Stop | None = None,
        say: Callable[[str], None] = lambda _: None,
    ) -> None:
        self.folder, self.about, self.every, self.say = folder, about or {}, every, say
        self.stop = stop or Stop()
        self.saves, self.seconds = 0, 0.0
        self._steps, self._last, self._cost = 0, time.perf_counter(), FIRST_GUESS
        self._warned = False

    def after_step(self, state: Callable[[], Saved]) -> None:
        """Between two steps: save if it is time or if a signal has come, and in that case stop."""
        self._steps += 1
        if self.stop.signal is not None:
            self.save(state)
            self.stop.check()
        if self._due(task_ended=False):
            self.save(state)

    def after_task(self, state: Callable[[], Saved]) -> None:
        """After a task is learned and tested."""
        if self.stop.signal is not None or self._due(task_ended=True):
            self.save(state)
        self.stop.check()

    def _due(self, task_ended: bool) -> bool:
        if self.folder is None or self.every.never:
            return False
        if self.every.steps is not None:
            return self._steps >= self.every.steps or task_ended
        passed = time.perf_counter() - self._last
        if self.every.thrifty:
            return passed >= max(SHARE * self._cost, 0.0 if task_ended else self.every.seconds or 0.0)
        return task_ended or passed >= (self.every.seconds or 0.0)

    def save(self, state: Callable[[], Saved]) -> None:
        """Write the state beside the one before, and let older ones go. A full disk does not end the run."""
        if self.folder is None or self.every.never:
            return
        begun = time.perf_counter()
        try:
            files = numbered(self.folder)
            number = int(files[-1].name.split(".")[0]) + 1 if files else 1
            tensors, about = state()
            checkpoint.write(self.folder / f"{number:08}.safetensors", Saved(tensors, about | self.about))
            for old in [*files[: max(0, len(files) + 1 - KEPT)], *self.folder.glob(".*.tmp")]:
                old.unlink(missing_ok=True)
        except (KclError, OSError) as error:
            then = "the run goes on" if self.stop.signal is None else "the steps since the last one are to be repeated"
            if not self._warned or self.stop.signal is not None:
                self.say(f"no checkpoint could be saved ({error}); {then}, and what was saved before stays")
            self._warned = True
        self._last, self._steps = time.perf_counter(), 0
        self._cost = self._last - begun
        self.saves, self.seconds = self.saves + 1, self.seconds + self._cost

    def newest(self) -> Saved | None:
        """The last checkpoint that is whole; None where there is none at all.

        Damaged ones are told of and set aside, so that the two that are kept are both worth keeping.
        """
        if self.folder is None:
            return None
        found, trouble = newest(self.folder)
        for path, error in trouble:
            self.say(f"{error}; the one before it is used")
            with suppress(OSError):
                path.rename(path.with_suffix(".damaged"))
        return found


def newest(folder: Path) -> tuple[Saved | None, list[tuple[Path, KclError]]]:
    """The newest checkpoint in a folder that can be read, None where there are none, and those newer that cannot be.

    Refused if there are some and none is whole: to begin anew would throw away what may still be mended.
    """
    trouble: list[tuple[Path, KclError]] = []
    for path in reversed(numbered(folder)):
        try:
            return checkpoint.read(path), trouble
        except KclError as error:
            trouble.append((path, error))
    if trouble:
        raise KclError(f"{trouble[0][1]}; no other is there: delete {folder} to begin its runs anew")
    return None, trouble


def numbered(folder: Path) -> list[Path]:
    """The checkpoints of a folder, oldest first."""
    try:
        found = [path for path in folder.iterdir() if path.suffix == ".safetensors" and _is_number(path.stem)]
    except FileNotFoundError:
        return []
    except OSError as error:
        raise KclError(f"{folder} cannot be read: {error.strerror or error}") from None
    return sorted(found, key=lambda path: int(path.stem))


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) <= 18


def clear(folder: Path) -> None:
    """Remove a group's checkpoints, and the folder if nothing else is in it."""
    try:
        for path in [*numbered(folder), *folder.glob(".*.tmp"), *folder.glob("*.damaged")]:
            path.unlink(missing_ok=True)
        if folder.is_dir():
            folder.rmdir()
    except (OSError, KclError):
        return  # what is left over does no harm: its runs are finished
