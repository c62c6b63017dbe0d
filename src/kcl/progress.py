"""What a person sees while runs go on: a live bar on a terminal, plain lines elsewhere, or nothing."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any

from kcl.training.runner import Progress


def make_display(quiet: bool) -> Lines | Bar | Silent:
    if quiet or sys.stderr is None:
        return Silent()
    if sys.stderr.isatty():
        try:
            from tqdm import tqdm
        except ImportError:
            return Lines()
        return Bar(tqdm)
    return Lines()


SHAPE = "{desc} {percentage:3.0f}% {elapsed}<{remaining}{postfix}"


class Silent:
    def watch(self, label: str) -> Callable[[Progress], None]:  # noqa: ARG002
        return lambda _: None

    def say(self, message: str) -> None:
        pass

    def close(self) -> None:
        pass


class Lines:
    """A line on standard error when a run begins and after every task."""

    def watch(self, label: str) -> Callable[[Progress], None]:
        begun = time.perf_counter()

        def show(progress: Progress) -> None:
            if progress.step is None:
                elapsed = time.perf_counter() - begun
                left = elapsed / (progress.task + 1) * (progress.tasks - progress.task - 1)
                self.say(
                    f"{label}: task {progress.task + 1} of {progress.tasks} learned, average accuracy "
                    f"{progress.average_accuracy:.2f} %, {elapsed:.0f} s, about {left:.0f} s left"
                )

        return show

    def say(self, message: str) -> None:
        sys.stderr.write(message + "\n")
        sys.stderr.flush()

    def close(self) -> None:
        pass


class Bar:
    """One bar per run: tasks and batches done, the loss, the accuracy so far, the time left."""

    def __init__(self, tqdm: Any) -> None:
        self._tqdm, self._bar = tqdm, None

    def watch(self, label: str) -> Callable[[Progress], None]:
        self.close()
        bar = self._bar = self._tqdm(total=1, unit="step", desc=label, miniters=1, dynamic_ncols=True, bar_format=SHAPE)

        def show(progress: Progress) -> None:
            accuracy = "–" if progress.average_accuracy is None else f"{progress.average_accuracy:.2f} %"
            if progress.step is None:
                bar.set_postfix_str(f"task {progress.task + 1}/{progress.tasks} learned, accuracy {accuracy}")
                return
            step = progress.step
            bar.total = step.steps * progress.tasks
            bar.set_postfix_str(
                f"task {progress.task + 1}/{progress.tasks} accuracy {accuracy} loss {step.loss:.3f} "
                f"batch {step.step}/{step.steps}",
                refresh=False,
            )
            bar.update(step.steps * progress.task + step.step - bar.n)

        return show

    def say(self, message: str) -> None:
        self._tqdm.write(message, file=sys.stderr)

    def close(self) -> None:
        if self._bar is not None:
            self._bar.close()
            self._bar = None
