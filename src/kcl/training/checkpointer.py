"""When and where runs are saved: each group of runs has a folder with its last two checkpoints."""

from __future__ import annotations

import re
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
"""Unless the user says how often to save, a hundred times the duration of the last save must pass before the next one,
so that saving takes less than a hundredth of the run.
"""
FIRST_GUESS = 0.05
"""Seconds that the first save is assumed to take."""


class Every(NamedTuple):
    """How often runs are saved: after a number of steps or of seconds; never if both are None."""

    steps: int | None = None
    seconds: float | None = 300.0
    thrifty: bool = True
    """The default rather than the user's choice: also after a task, but never for more than a hundredth of the time."""

    @property
    def never(self) -> bool:
        return self.steps is None and self.seconds is None


class Checkpointer:
    """Saves a group of runs at intervals, and before a signal stops it. Without a folder it only handles signals.

    Intervals are measured with a monotonic clock, and the newest checkpoint is the one with the highest number, so
    changes of the system time do no harm.
    """

    def __init__(
        self,
        folder: Path | None = None,
        about: dict[str, Any] | None = None,
        every: Every = Every(),  # noqa: B008 - immutable
        stop: Stop | None = None,
        say: Callable[[str], None] = lambda _: None,
    ) -> None:
        self.folder, self.about, self.every, self.say = folder, about or {}, every, say
        self.stop = stop or Stop()
        self.saves, self.seconds = 0, 0.0
        self._steps, self._last, self._cost = 0, time.perf_counter(), FIRST_GUESS
        self._warned = False

    def after_step(self, state: Callable[[], Saved]) -> None:
        """Between two steps: save if it is time; after a signal, save and stop."""
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
        if self.every.steps is not None:
            return self._steps >= self.every.steps or task_ended
        least = 0.0 if task_ended else self.every.seconds or 0.0
        if self.every.thrifty:
            least = max(least, SHARE * self._cost)
        return time.perf_counter() - self._last >= least

    def save(self, state: Callable[[], Saved]) -> None:
        """Write a checkpoint and delete all older ones but the last. A full disk does not end the run."""
        if self.folder is None or self.every.never:
            return
        start = time.perf_counter()
        try:
            files = numbered(self.folder)
            number = int(files[-1].stem) + 1 if files else 1
            tensors, about = state()
            checkpoint.write(self.folder / f"{number:08}.safetensors", Saved(tensors, about | self.about))
            for old in [*files[: max(0, len(files) + 1 - KEPT)], *self.folder.glob(".*.tmp")]:
                old.unlink(missing_ok=True)
        except (KclError, OSError) as error:
            stopping = self.stop.signal is not None
            if stopping or not self._warned:
                then = "steps since the last checkpoint will be repeated" if stopping else "the run continues"
                self.say(f"no checkpoint could be saved ({error}); {then}, and earlier checkpoints are kept")
            self._warned = True
        self._last, self._steps = time.perf_counter(), 0
        self._cost = self._last - start
        self.saves, self.seconds = self.saves + 1, self.seconds + self._cost

    def newest(self) -> Saved | None:
        """The newest readable checkpoint; None if there are no checkpoints.

        Damaged ones are reported and renamed, so that both checkpoints that are kept are readable.
        """
        if self.folder is None:
            return None
        saved, damaged = newest(self.folder)
        for path, error in damaged:
            self.say(f"{error}; the checkpoint before it is used")
            with suppress(OSError):
                path.rename(path.with_suffix(".damaged"))
        return saved


def newest(folder: Path) -> tuple[Saved | None, list[tuple[Path, KclError]]]:
    """The newest readable checkpoint in a folder (None if there are no checkpoints), and newer ones that are damaged.

    Raises KclError if all are damaged: starting again would discard what may still be repaired.
    """
    damaged: list[tuple[Path, KclError]] = []
    for path in reversed(numbered(folder)):
        try:
            return checkpoint.read(path), damaged
        except KclError as error:
            damaged.append((path, error))
    if damaged:
        raise KclError(f"{damaged[0][1]}; there is no other checkpoint: delete {folder} to start its runs again")
    return None, damaged


def numbered(folder: Path) -> list[Path]:
    """The checkpoints of a folder, oldest first."""
    try:
        paths = [path for path in folder.iterdir() if re.fullmatch(r"[0-9]{1,18}\.safetensors", path.name)]
    except FileNotFoundError:
        return []
    except OSError as error:
        raise KclError(f"{folder} cannot be read: {error.strerror or error}") from None
    return sorted(paths, key=lambda path: int(path.stem))


def clear(folder: Path) -> None:
    """Remove a group's checkpoints, and the folder if nothing else is in it."""
    try:
        for path in [*numbered(folder), *folder.glob(".*.tmp"), *folder.glob("*.damaged")]:
            path.unlink(missing_ok=True)
        if folder.is_dir():
            folder.rmdir()
    except (OSError, KclError):
        return  # leftover files do no harm: the runs are finished
