"""What a person sees while runs go on: live bars on a terminal, plain lines elsewhere, or nothing."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

from kcl.training.run_progress import Standing
from kcl.training.stream_run import Progress


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
EVERY = 0.1
"""Seconds between two looks at a step: a display must not slow what it shows."""
SELDOM = 10.0
"""Seconds between two lines about many workers, where lines are not drawn over."""


class Plan:
    """How many of the runs asked for are done, and how long the others will take at this pace."""

    def __init__(self) -> None:
        self.done, self.total, self._before, self._begun = 0, 0, 0, time.perf_counter()

    def expect(self, done: int, total: int) -> None:
        """`done` of `total` runs were finished before this command."""
        self.done, self.total, self._before, self._begun = done, total, done, time.perf_counter()

    def part(self, progress: Progress) -> float:
        """Runs done, with the current ones as far as they are."""
        within = 1.0 if progress.step is None else progress.step.step / progress.step.steps
        return self.done + len(progress.runs) * (progress.task + within) / progress.tasks

    def seconds_left(self, progress: Progress) -> float | None:
        """None while nothing tells the pace, or where the current runs are all there is."""
        done = self.part(progress) - self._before
        if self.total <= self._before + len(progress.runs) or done <= 0:
            return None
        return (time.perf_counter() - self._begun) / done * (self.total - self._before - done)

    def ended(self, progress: Progress) -> None:
        if progress.step is None and progress.task + 1 == progress.tasks:
            self.done += len(progress.runs)


class Silent:
    def expect(self, done: int, total: int) -> None:
        pass

    def watch(self, label: str) -> Callable[[Progress], None]:  # noqa: ARG002
        return lambda _: None

    def stand(self, lines: Sequence[str]) -> None:
        pass

    def say(self, message: str) -> None:
        pass

    def close(self) -> None:
        pass


class Lines:
    """A line on standard error after every task; of many workers, where all stand, now and then."""

    def __init__(self) -> None:
        self._plan, self._stood = Plan(), 0.0
        self.expect = self._plan.expect

    def watch(self, label: str) -> Callable[[Progress], None]:
        begun = time.perf_counter()

        def show(progress: Progress) -> None:
            if progress.step is not None:
                return
            elapsed = time.perf_counter() - begun
            left = elapsed / (progress.task + 1) * (progress.tasks - progress.task - 1)
            all_left = self._plan.seconds_left(progress)
            self._plan.ended(progress)
            self.say(
                f"{label}: task {progress.task + 1} of {progress.tasks} learned, {_accuracy(progress)}"
                f"{_forgetting(progress)}, {duration(elapsed)}, about {duration(left)} left"
                + ("" if all_left is None else f", {duration(all_left)} for all {self._plan.total} runs")
            )

        return show

    def stand(self, lines: Sequence[str]) -> None:
        """Where many workers stand: the first line tells of all."""
        if time.monotonic() - self._stood >= SELDOM:
            self._stood = time.monotonic()
            self.say(lines[0])

    def say(self, message: str) -> None:
        sys.stderr.write(message + "\n")
        sys.stderr.flush()

    def close(self) -> None:
        pass


class Bar:
    """Live lines: all runs, if there are several; the current one or ones; and how each of those stands."""

    def __init__(self, tqdm: Any) -> None:
        self._tqdm, self._plan = tqdm, Plan()
        self._bars: list[Any] = []

    def expect(self, done: int, total: int) -> None:
        self._plan.expect(done, total)

    def watch(self, label: str) -> Callable[[Progress], None]:
        self.close()
        current = self._add(total=1, desc=label, bar_format=SHAPE)
        overall = self._add(total=1, bar_format="{desc}") if self._plan.total > 1 else None
        beside: list[Any] = []  # made when it is known how many runs are learned together
        shown = 0.0

        def show(progress: Progress) -> None:
            nonlocal shown
            now = time.perf_counter()
            if progress.step is not None and now - shown < EVERY and progress.step.step < progress.step.steps:
                return
            shown = now
            if len(progress.runs) > 1 and not beside:
                beside.append(self._add(total=1, bar_format="{desc}"))
            step = progress.step
            figures = f"task {progress.task + 1}/{progress.tasks} {_accuracy(progress)}{_forgetting(progress)}"
            if step is None:
                current.set_postfix_str(f"{figures}, learned")
            else:
                current.total = step.steps * progress.tasks
                batch = f"loss {step.loss:.3f} batch {step.step}/{step.steps}"
                current.set_postfix_str(f"{figures}, {batch}", refresh=False)
                current.update(step.steps * progress.task + step.step - current.n)
            for bar in beside:
                bar.set_description_str(_each(progress.runs))
            if overall is not None:
                left = self._plan.seconds_left(progress)
                about = "" if left is None else f", about {duration(left)} left"
                overall.set_description_str(f"{self._plan.part(progress):.1f} of {self._plan.total} runs done{about}")
            self._plan.ended(progress)

        return show

    def stand(self, lines: Sequence[str]) -> None:
        """Where many workers stand, a line each."""
        if len(lines) > len(self._bars):
            self.close()
            for _ in lines:
                self._add(total=1, bar_format="{desc}")
        for bar, line in zip(self._bars, lines, strict=False):
            bar.set_description_str(line)

    def _add(self, **options: Any) -> Any:
        first = not self._bars
        options |= {"dynamic_ncols": True, "miniters": 1, "mininterval": 0.0}  # `show` has its own interval
        bar = self._tqdm(position=len(self._bars), leave=first, **options)
        self._bars.append(bar)
        return bar

    def say(self, message: str) -> None:
        self._tqdm.write(message, file=sys.stderr)

    def close(self) -> None:
        for bar in reversed(self._bars):
            bar.close()
        self._bars.clear()


def _accuracy(progress: Progress) -> str:
    """Average accuracy so far; of several runs the mean, the lowest and the highest."""
    if progress.average_accuracy is None:
        return "average accuracy –"
    values = [run.average_accuracy for run in progress.runs if run.average_accuracy is not None]
    span = f" ({min(values):.2f} to {max(values):.2f})" if len(values) > 1 else ""
    return f"average accuracy {progress.average_accuracy:.2f} %{span}"


def _forgetting(progress: Progress) -> str:
    values = [run.forgetting for run in progress.runs if run.forgetting is not None]
    return f", forgetting {sum(values) / len(values):.3f}" if values else ""


def _each(runs: Sequence[Standing]) -> str:
    told = (
        f"seed {run.seed} " + ("–" if run.average_accuracy is None else f"{run.average_accuracy:.1f} %") for run in runs
    )
    return "  " + ", ".join(told)


def duration(seconds: float) -> str:
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"
