"""What is shown while runs go on, on a terminal and elsewhere."""

from __future__ import annotations

import io
import sys
import time

import pytest

from kcl.experiments import progress as module
from kcl.experiments.progress import Bar, Display, Lines, make_display
from kcl.training.step_progress import Step
from kcl.training.stream_run import Progress, RunProgress


def after(task: int, tasks: int, *averages: float | None, step: Step | None = None) -> Progress:
    runs = tuple(RunProgress(seed, [], own, None if task == 0 else 0.125) for seed, own in enumerate(averages))
    known = [own for own in averages if own is not None]
    return Progress(task, tasks, step, sum(known) / len(known) if known else None, runs)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [100.0]
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])
    return now


def test_lines_tell_accuracy_forgetting_and_time_left(capsys: pytest.CaptureFixture[str], clock: list[float]) -> None:
    lines = Lines()
    lines.expect(0, 2)
    show = lines.watch("kcl seed 0")
    show(after(0, 4, None, step=Step(1, 10, 0.5)))
    clock[0] += 10
    show(after(0, 4, 80.0))
    clock[0] += 10
    show(after(1, 4, 81.0))
    assert capsys.readouterr().err.splitlines() == [
        "kcl seed 0: task 1 of 4 learned, average accuracy 80.00 %, 10 s, about 30 s left, 70 s for all 2 runs",
        "kcl seed 0: task 2 of 4 learned, average accuracy 81.00 %, forgetting 0.125, 20 s, about 20 s left, "
        "60 s for all 2 runs",
    ]


def test_several_runs_at_once_are_told_with_their_span(capsys: pytest.CaptureFixture[str]) -> None:
    show = Lines().watch("kcl, 3 runs")
    show(after(1, 2, 80.0, 84.0, None))
    assert "average accuracy 82.00 % (80.00 to 84.00), forgetting 0.125" in capsys.readouterr().err


def test_runs_that_were_finished_before_do_not_count_for_the_pace(clock: list[float]) -> None:
    plan = Display()
    plan.expect(6, 10)
    clock[0] += 30
    done = after(0, 1, 80.0)
    assert plan.runs_done(done) == 7
    assert plan.seconds_left(done) == pytest.approx(90)
    plan.update(done)
    assert plan.done == 7
    assert plan.seconds_left(after(0, 2, 1.0, step=Step(1, 2, 0.1))) == pytest.approx(30 / 1.25 * 2.75)


def test_a_terminal_gets_bars(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("tqdm")
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    display = make_display(quiet=False)
    assert isinstance(display, Bar)
    display.expect(0, 4)
    show = display.watch("kcl, 2 runs")
    show(after(0, 2, None, None, step=Step(5, 10, 0.25)))
    show(after(0, 2, 80.0, 84.0))
    show(after(1, 2, 81.0, 83.0, step=Step(10, 10, 0.125)))
    display.say("a word between")
    display.close()
    told = terminal.getvalue()
    for part in ("kcl, 2 runs", "task 1/2", "loss 0.250", "82.00 % (80.00 to 84.00)", "seed 1 84.0 %", "of 4 runs done",
                 "forgetting 0.125", "a word between"):  # fmt: skip
        assert part in told, part


def test_steps_are_looked_at_only_now_and_then(monkeypatch: pytest.MonkeyPatch, clock: list[float]) -> None:
    """A thousand steps in the same tenth of a second are formatted once."""
    pytest.importorskip("tqdm")
    monkeypatch.setattr(sys, "stderr", Terminal())
    looks = 0
    original = module._measured

    def counted(progress: Progress) -> str:
        nonlocal looks
        looks += 1
        return original(progress)

    monkeypatch.setattr(module, "_measured", counted)
    display = make_display(quiet=False)
    show = display.watch("kcl")
    for step in range(1, 1001):
        show(after(0, 2, None, step=Step(step, 2000, 0.5)))
    display.close()
    assert looks == 1


def test_without_tqdm_a_terminal_gets_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", Terminal())
    monkeypatch.setitem(sys.modules, "tqdm", None)
    assert isinstance(make_display(quiet=False), Lines)
    assert type(make_display(quiet=True)) is Display
