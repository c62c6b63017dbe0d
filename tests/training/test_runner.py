"""Whole streams: what is measured when, and what is told on the way. The learner is scripted."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from kcl.benchmarks.task import Task
from kcl.methods.recipes import METHODS
from kcl.training.step_progress import BetweenSteps, OnStep, Step
from kcl.training.stream_run import Progress, run_streams

TASKS, STEPS = 4, 2


class _Scripted:
    """Stands in for a stack of runs. Answers 10·(tasks learned) + task + seed/10 percent, and notes every call."""

    def __init__(self, seeds: Sequence[int], answers_unseen: bool, fails: dict[int, int] | None = None) -> None:
        self.seeds, self.answers_unseen, self.joint = seeds, answers_unseen, False
        self.compares_tasks = False
        self.fails = fails or {}
        self.learned = 0
        self.calls: list[tuple[str, int]] = []

    def learn(self, tasks: Sequence[Task], on_step: OnStep, between_steps: BetweenSteps = lambda: None) -> None:
        assert [task.index for task in tasks] == [self.learned] * len(self.seeds)
        self.calls.append(("learn", self.learned))
        for step in range(1, STEPS + 1):
            on_step(Step(step, STEPS, float(self.learned)))
        self.learned += 1

    def accuracy(self, tasks: Sequence[Task]) -> list[float]:
        [index] = {task.index for task in tasks}
        self.calls.append(("accuracy", index))
        return [_percent(self.learned, index, seed) for seed in self.seeds]

    @property
    def diverged(self) -> list[bool]:
        return [self.learned > self.fails.get(seed, TASKS) for seed in self.seeds]

    def memory_use(self) -> list[dict[str, int]]:
        return [{"samples": seed, "bytes": self.learned} for seed in self.seeds]

    def fingerprints(self) -> list[str]:
        return [f"{seed} {self.learned}" for seed in self.seeds]


def _percent(learned: int, task: int, seed: int) -> float:
    return 10.0 * learned + task + seed / 10.0


@pytest.fixture
def streams(make_runs: Any) -> list[Any]:
    return make_runs(tasks=TASKS).streams


SEEDS = [3, 5, 8]


@pytest.mark.parametrize("unseen", [False, True])
class TestMatrix:
    def test_is_filled_where_it_should_be(self, streams: list[Any], unseen: bool) -> None:
        """After task t the tasks up to t; the next one too, where it can be answered, for forward transfer."""
        outcomes = run_streams(_Scripted(SEEDS, unseen), streams)
        for seed, outcome in zip(SEEDS, outcomes, strict=True):
            expected = [
                [_percent(learned + 1, task, seed) if task <= learned + unseen else None for task in range(TASKS)]
                for learned in range(TASKS)
            ]
            assert outcome.matrix.to_lists() == expected

    def test_the_beginning_is_measured_where_it_can_be(self, streams: list[Any], unseen: bool) -> None:
        for seed, outcome in zip(SEEDS, run_streams(_Scripted(SEEDS, unseen), streams), strict=True):
            expected = [_percent(0, task, seed) for task in range(TASKS)] if unseen else None
            assert outcome.initial_accuracy == expected

    def test_nothing_is_measured_twice_or_out_of_turn(self, streams: list[Any], unseen: bool) -> None:
        learner = _Scripted(SEEDS, unseen)
        run_streams(learner, streams)
        expected = [("accuracy", task) for task in range(TASKS)] if unseen else []
        for learned in range(TASKS):
            expected += [("learn", learned)]
            expected += [("accuracy", task) for task in range(min(learned + 1 + unseen, TASKS))]
        assert learner.calls == expected

    def test_a_run_that_diverges_has_no_numbers_from_then_on(self, streams: list[Any], unseen: bool) -> None:
        outcomes = run_streams(_Scripted(SEEDS, unseen, {5: 2}), streams)
        whole = run_streams(_Scripted(SEEDS, unseen), streams)
        assert [outcome.diverged for outcome in outcomes] == [False, True, False]
        assert outcomes[0].matrix.to_lists() == whole[0].matrix.to_lists()
        assert outcomes[1].matrix.to_lists() == whole[1].matrix.to_lists()[:2] + [[None] * TASKS] * 2

    def test_when_no_run_is_left_it_ends(self, streams: list[Any], unseen: bool) -> None:
        learner = _Scripted(SEEDS, unseen, dict.fromkeys(SEEDS, 1))
        outcomes = run_streams(learner, streams)
        assert learner.learned == 2
        assert all(outcome.diverged for outcome in outcomes)
        assert all(np.isnan(outcome.matrix.values[1:]).all() for outcome in outcomes)
        assert not any(np.isnan(outcome.matrix.values[0, 0]) for outcome in outcomes)


def test_every_run_has_its_own_memory_use_and_all_have_the_time(streams: list[Any]) -> None:
    outcomes = run_streams(_Scripted(SEEDS, False), streams)
    assert [outcome.memory for outcome in outcomes] == [{"samples": seed, "bytes": TASKS} for seed in SEEDS]
    assert len({outcome.seconds for outcome in outcomes}) == 1
    assert outcomes[0].seconds >= 0.0


class TestProgress:
    def test_is_told_step_by_step_and_task_by_task(self, streams: list[Any]) -> None:
        reports: list[Progress] = []
        run_streams(_Scripted(SEEDS, False), streams, reports.append)
        expected, average = [], None
        for task in range(TASKS):
            expected += [(task, TASKS, Step(step, STEPS, float(task)), average) for step in range(1, STEPS + 1)]
            seen = [_percent(task + 1, other, seed) for other in range(task + 1) for seed in SEEDS]
            average = pytest.approx(sum(seen) / len(seen))
            expected.append((task, TASKS, None, average))
        assert [progress[:4] for progress in reports] == expected

    def test_tells_how_every_run_stands(self, streams: list[Any]) -> None:
        reports: list[Progress] = []
        outcomes = run_streams(_Scripted(SEEDS, False, {5: 1}), streams, reports.append)
        assert [run.seed for run in reports[0].runs] == list(SEEDS)
        assert all(run.accuracies == [] for run in reports[0].runs)
        for task, progress in enumerate(progress for progress in reports if progress.step is None):
            for outcome, run in zip(outcomes, progress.runs, strict=True):
                if run.seed == 5 and task >= 1:
                    assert run[1:] == ([], None, None)
                    continue
                assert run.accuracies == outcome.matrix.to_lists()[task][: task + 1]
                assert run.average_accuracy == outcome.matrix.average_accuracy_after(task)
                assert run.forgetting == outcome.matrix.forgetting_after(task)

    def test_averages_over_the_runs_that_have_not_diverged(self, streams: list[Any]) -> None:
        reports: list[Progress] = []
        run_streams(_Scripted(SEEDS, False, {5: 1}), streams, reports.append)
        ends = [progress.average_accuracy for progress in reports if progress.step is None]
        for task, average in enumerate(ends):
            seeds = SEEDS if task == 0 else [3, 8]
            seen = [_percent(task + 1, other, seed) for other in range(task + 1) for seed in seeds]
            assert average == pytest.approx(sum(seen) / len(seen))

    @pytest.mark.parametrize("method", METHODS)
    def test_runs_leave_the_same_outcomes_stacked_and_plain(self, make_runs: Any, method: str, double: None) -> None:
        runs = make_runs(method, samples=45, tasks=3)
        plain = [outcome for run in runs.one_by_one() for outcome in run_streams(run.plain(), run.streams)]
        stacked = run_streams(runs.stacked(), runs.streams)
        for one, two in zip(plain, stacked, strict=True):
            assert one.matrix.to_lists() == two.matrix.to_lists()
            assert one.initial_accuracy == two.initial_accuracy
            assert (one.initial_accuracy is None) == (not METHODS[method].answers_unseen)
            assert one.memory == two.memory
            assert not one.diverged
            assert not two.diverged
