"""What the user sees while runs are training: live bars on a terminal, plain lines elsewhere, or nothing."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from kcl.training.stream_run import OnProgress, Progress, RunProgress


def make_display(quiet: bool) -> Display:
    if quiet or sys.stderr is None:
        return Display()
    if sys.stderr.isatty():
        with suppress(ImportError):
            from tqdm import tqdm

            return Bar(tqdm)
    return Lines()


BAR_FORMAT = "{desc} {percentage:3.0f}% {elapsed}<{remaining}{postfix}"
EVERY = 0.1
"""Seconds between two updates of the bars: a display must not slow down what it shows."""
STATUS_LINE_EVERY = 10.0
"""Seconds between two status lines of an engine where lines are not drawn over."""


class Display:
    """Shows nothing, but knows how many runs are done and how long the others will take; the displays below show it."""

    def __init__(self) -> None:
        self.expect(0, 0)

    def expect(self, done: int, total: int) -> None:
        """`done` of `total` runs were finished before this command."""
        self.done, self.total, self._before, self._start = done, total, done, time.perf_counter()

    def runs_done(self, progress: Progress) -> float:
        """Runs done, including the finished part of the current ones."""
        within_task = 1.0 if progress.step is None else progress.step.step / progress.step.steps
        return self.done + len(progress.runs) * (progress.task + within_task) / progress.tasks

    def seconds_left(self, progress: Progress) -> float | None:
        """At the present pace. None before it is known, or if there are no runs except the current ones."""
        done = self.runs_done(progress) - self._before
        if self.total <= self._before + len(progress.runs) or done <= 0:
            return None
        return (time.perf_counter() - self._start) / done * (self.total - self._before - done)

    def update(self, progress: Progress) -> None:
        """Count the current runs as done after their last task."""
        if progress.step is None and progress.task + 1 == progress.tasks:
            self.done += len(progress.runs)

    def watch(self, label: str) -> OnProgress:  # noqa: ARG002
        """Called when the training of a group starts; the answer is called with its progress."""
        return lambda _: None

    def show_status(self, lines: Sequence[str]) -> None:
        """Show the status of an engine: the first line is about all runs, the others are about its workers."""

    def say(self, message: str) -> None:
        """Show one message."""

    def close(self) -> None:
        """Called when all runs have ended."""


class Lines(Display):
    """A line on standard error after every task; with an engine, a status line now and then."""

    def __init__(self) -> None:
        super().__init__()
        self._status_shown = 0.0

    def watch(self, label: str) -> OnProgress:
        start = time.perf_counter()

        def show(progress: Progress) -> None:
            if progress.step is not None:
                return
            elapsed = time.perf_counter() - start
            left = elapsed / (progress.task + 1) * (progress.tasks - progress.task - 1)
            all_left = self.seconds_left(progress)
            self.update(progress)
            self.say(
                f"{label}: task {progress.task + 1} of {progress.tasks} learned, {_measured(progress)}, "
                f"{format_duration(elapsed)}, about {format_duration(left)} left"
                + ("" if all_left is None else f", {format_duration(all_left)} for all {self.total} runs")
            )

        return show

    def show_status(self, lines: Sequence[str]) -> None:
        if time.monotonic() - self._status_shown >= STATUS_LINE_EVERY:
            self._status_shown = time.monotonic()
            self.say(lines[0])

    def say(self, message: str) -> None:
        sys.stderr.write(message + "\n")
        sys.stderr.flush()


class Bar(Display):
    """Live lines: the current group, all runs if there are several, and each run of the group."""

    def __init__(self, tqdm: Any) -> None:
        super().__init__()
        self._tqdm = tqdm
        self._bars: list[Any] = []

    def watch(self, label: str) -> OnProgress:
        self.close()
        current = self._add(desc=label, bar_format=BAR_FORMAT)
        overall = self._add() if self.total > 1 else None
        runs_bar = None  # created once the number of runs in the group is known
        shown = 0.0

        def show(progress: Progress) -> None:
            nonlocal shown, runs_bar
            now, step = time.perf_counter(), progress.step
            if step is not None and now - shown < EVERY and step.step < step.steps:
                return
            shown = now
            figures = f"task {progress.task + 1}/{progress.tasks} {_measured(progress)}"
            if step is None:
                current.set_postfix_str(f"{figures}, learned")
            else:
                current.total = step.steps * progress.tasks
                batch = f"loss {step.loss:.3f} batch {step.step}/{step.steps}"
                current.set_postfix_str(f"{figures}, {batch}", refresh=False)
                current.update(step.steps * progress.task + step.step - current.n)
            if len(progress.runs) > 1:
                runs_bar = self._add() if runs_bar is None else runs_bar
                runs_bar.set_description_str("  " + ", ".join(map(_run_accuracy, progress.runs)))
            if overall is not None:
                left = self.seconds_left(progress)
                about = "" if left is None else f", about {format_duration(left)} left"
                overall.set_description_str(f"{self.runs_done(progress):.1f} of {self.total} runs done{about}")
            self.update(progress)

        return show

    def show_status(self, lines: Sequence[str]) -> None:
        if len(lines) > len(self._bars):
            self.close()
            for _ in lines:
                self._add()
        for bar, line in zip(self._bars, lines, strict=False):
            bar.set_description_str(line)

    def _add(self, **options: Any) -> Any:
        """One more line: text only, unless the options say otherwise."""
        common = {"total": 1, "bar_format": "{desc}", "position": len(self._bars), "leave": not self._bars}
        common |= {"dynamic_ncols": True, "miniters": 1, "mininterval": 0.0}  # `show` has its own interval
        self._bars.append(self._tqdm(**(common | options)))
        return self._bars[-1]

    def say(self, message: str) -> None:
        self._tqdm.write(message, file=sys.stderr)

    def close(self) -> None:
        for bar in reversed(self._bars):
            bar.close()
        self._bars.clear()


def _measured(progress: Progress) -> str:
    """Average accuracy so far, for several runs their mean, lowest and highest; and forgetting."""
    if progress.average_accuracy is None:
        return "average accuracy –"
    values = [run.average_accuracy for run in progress.runs if run.average_accuracy is not None]
    span = f" ({min(values):.2f} to {max(values):.2f})" if len(values) > 1 else ""
    forgetting = [run.forgetting for run in progress.runs if run.forgetting is not None]
    mean = f", forgetting {sum(forgetting) / len(forgetting):.3f}" if forgetting else ""
    return f"average accuracy {progress.average_accuracy:.2f} %{span}{mean}"


def _run_accuracy(run: RunProgress) -> str:
    return f"seed {run.seed} " + ("–" if run.average_accuracy is None else f"{run.average_accuracy:.1f} %")


def format_duration(seconds: float) -> str:
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"
