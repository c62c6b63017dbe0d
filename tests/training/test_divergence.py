"""A run whose loss is not finite stops where it was, says so, and no other run notices."""

from __future__ import annotations

import dataclasses
import math
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

from kcl.benchmarks.task import Examples, Stream, Task
from kcl.core.randomness import numpy_generator
from kcl.methods.recipes import METHODS
from kcl.training.stacked_task import batch_order
from kcl.training.step_progress import Step
from kcl.training.stream_run import run_streams
from reference_run import TRAINED

BAD, BAD_STEP = 1, 3
# Every training task of two: joint training has only one.
TRAINING_TASKS = pytest.mark.parametrize(
    ("method", "index"), [(name, index) for name in TRAINED for index in (0, 1)[: 2 - METHODS[name].joint]]
)
engines = pytest.mark.parametrize("engine", ["plain", "stacked"])


class _Tasks(Stream):
    class_labels = (0, 1, 2)

    def __init__(self, tasks: list[Task]) -> None:
        self.tasks, self.task_count = tasks, len(tasks)
        self.input_shape = tuple(tasks[0].train.inputs.shape[1:])

    def task(self, index: int) -> Task:
        return self.tasks[index]


class _Pair(NamedTuple):
    clean: Any
    spoiled: Any


def _spoil(runs: Any, index: int) -> _Pair:
    """The runs on numbers instead of bytes, each task of each with a part of the array to itself; and the same with one
    number of one training sample missing, the sample that run BAD meets in step BAD_STEP of training task `index`.
    """
    tasks, size = len(runs.streams[0]), len(runs.streams[0][0].train)
    method, learned = runs.methods()[BAD], runs.training_tasks(index)[BAD]
    rng = numpy_generator(runs.seeds[BAD], "coreset", index)
    learner = runs[[BAD]].separate()
    positions = method.begin_task(learner.runs[0].model, learned, rng).positions
    place = int(batch_order(runs.seeds[BAD], index, 0, positions)[10 * (BAD_STEP - 1) + 4])
    task, place = (index, place) if len(learned.parts) == 1 else divmod(place, size)  # several tasks as one
    stored = (runs.streams[0][0].train.inputs / 255.0).repeat(len(runs.seeds) * tasks, 1, 1, 1)
    flawed = stored.clone()
    flawed[(BAD * tasks + task) * size + place, 0, 1, 2] = math.nan

    def streams(array: Tensor) -> list[_Tasks]:
        made = []
        for run, stream in enumerate(runs.streams):
            replaced = [
                dataclasses.replace(
                    task,
                    train=Examples(array, torch.arange(size) + (run * tasks + task.index) * size, task.train.labels),
                    test=dataclasses.replace(task.test, inputs=tested),
                )
                for task in stream
            ]
            made.append(_Tasks(replaced))
        return made

    tested = runs.streams[0][0].test.inputs / 255.0
    clean, spoiled = streams(stored), streams(flawed)
    return _Pair(dataclasses.replace(runs, streams=clean), dataclasses.replace(runs, streams=spoiled))


def _trained(runs: Any, engine: str) -> tuple[Any, Any, int]:
    """The runs as an engine trains them, and the place of run BAD: all of them stacked, or that one alone."""
    runs, place = (runs, BAD) if engine == "stacked" else (runs[[BAD]], 0)
    return runs, runs.learner(engine), place


def _states(runs: Any, difference: Any, index: int) -> list[dict[str, Tensor]]:
    """Run BAD alone, after each step of task `index`; place 0 is before the first step."""
    alone = runs[[BAD]].separate()
    for before in range(index):
        alone.learn(runs[[BAD]].training_tasks(before), lambda _: None)
    states = difference.snapshot(alone)
    alone.learn(runs[[BAD]].training_tasks(index), lambda _: states.extend(difference.snapshot(alone)))
    return states


def _frozen(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """What stays: λ, scale and shift belong to a task and begin anew at each, learned or not."""
    return {name: tensor for name, tensor in state.items() if not name.startswith("head.")}


@engines
@pytest.mark.usefixtures("double")
class TestANumberThatIsMissing:
    """Run 1 of three meets a missing number in step 3 of a task; the steps before it are sound."""

    @TRAINING_TASKS
    def test_the_run_stays_as_it_was_before(
        self, make_runs: Any, difference: Any, engine: str, method: str, index: int
    ) -> None:
        clean, spoiled = _spoil(make_runs(method, tasks=3), index)
        spoiled, learner, bad = _trained(spoiled, engine)
        for number in range(index + 1):
            assert not any(learner.diverged)
            learner.learn(spoiled.training_tasks(number), lambda _: None)
        assert [run for run, diverged in enumerate(learner.diverged) if diverged] == [bad]
        expected = _states(clean, difference, index)[BAD_STEP - 1]
        tensors = difference.snapshot(learner)[bad]
        assert all(tensor.isfinite().all() for tensor in tensors.values())
        torch.testing.assert_close(tensors, expected, rtol=1e-9, atol=1e-9)
        if spoiled.training_count == 1:
            return
        learner.learn(spoiled.training_tasks(index + 1), lambda _: None)
        assert learner.diverged[bad]
        tensors = difference.snapshot(learner)[bad]
        torch.testing.assert_close(_frozen(tensors), _frozen(expected), rtol=1e-9, atol=1e-9)

    def test_running_statistics_stay_as_they_were_too(self, make_runs: Any, difference: Any, engine: str) -> None:
        clean, spoiled = _spoil(make_runs(net="resnet", samples=44), 0)
        spoiled, learner, bad = _trained(spoiled, engine)
        learner.learn(spoiled.tasks(0), lambda _: None)
        assert learner.diverged[bad]
        expected = _states(clean, difference, 0)[BAD_STEP - 1]
        torch.testing.assert_close(difference.snapshot(learner)[bad], expected, rtol=1e-8, atol=1e-8)

    @TRAINING_TASKS
    def test_whole_streams_report_it(self, make_runs: Any, engine: str, method: str, index: int) -> None:
        """What was measured before stays; nothing is measured after; the others have all their numbers."""
        clean, spoiled = _spoil(make_runs(method, tasks=3), index)
        outcomes = [
            outcome for group in spoiled.groups(engine) for outcome in run_streams(group.learner(engine), group.streams)
        ]
        expected = run_streams(clean.separate(), clean.streams)
        assert [outcome.diverged for outcome in outcomes] == [False, True, False]
        for run in (0, 2):
            assert outcomes[run].matrix.to_lists() == expected[run].matrix.to_lists()
            assert outcomes[run].initial_accuracy == expected[run].initial_accuracy
            assert outcomes[run].memory == expected[run].memory
        rows = outcomes[BAD].matrix.to_lists()
        assert rows[:index] == expected[BAD].matrix.to_lists()[:index]
        assert rows[index:] == [[None] * 3] * (3 - index)
        assert outcomes[BAD].matrix.average_accuracy is None
        assert outcomes[BAD].initial_accuracy == expected[BAD].initial_accuracy


@pytest.mark.usefixtures("double")
@pytest.mark.parametrize(("method", "net"), [("kcl", "resnet"), *((method, "mlp") for method in TRAINED)])
def test_neighbours_in_a_stack_learn_on_as_without_it(make_runs: Any, difference: Any, method: str, net: str) -> None:
    clean, spoiled = _spoil(make_runs(method, net, samples=44), 0)
    learner, expected = spoiled.stacked(), clean[[0, 2]].separate()
    for index in range(clean.training_count):
        learner.learn(spoiled.training_tasks(index), lambda _: None)
        expected.learn(clean[[0, 2]].training_tasks(index), lambda _: None)
        torch.testing.assert_close(difference.method_state(learner)[::2], difference.method_state(expected))
        others = difference.snapshot(learner)[::2]
        torch.testing.assert_close(others, difference.snapshot(expected), rtol=1e-8, atol=1e-8)


@engines
class TestALearningRateFarTooHigh:
    """As a user may meet it, in single precision."""

    @pytest.mark.parametrize(("method", "net"), [("naive-sgd", "resnet"), *((method, "mlp") for method in TRAINED)])
    def test_marks_the_run_and_leaves_its_weights_finite(
        self, make_runs: Any, difference: Any, engine: str, method: str, net: str
    ) -> None:
        runs = make_runs(method, net, samples=44, feature_norm="none").but(BAD, lr=1e30)
        others = runs[[0, 2]].separate()
        others.learn(runs[[0, 2]].training_tasks(0), lambda _: None)
        trained, learner, bad = _trained(runs, engine)
        learner.learn(trained.training_tasks(0), lambda _: None)
        assert [run for run, diverged in enumerate(learner.diverged) if diverged] == [bad]
        models = difference.models(learner)
        assert all(parameter.isfinite().all() for parameter in models[bad].parameters())
        if engine == "plain":  # has no neighbours
            return
        for run, model in zip((0, 2), difference.models(others), strict=True):
            parameters = dict(models[run].named_parameters())
            torch.testing.assert_close(parameters, dict(model.named_parameters()), rtol=1e-4, atol=1e-4)

    def test_runs_that_all_diverge_end_the_stream(self, make_runs: Any, engine: str) -> None:
        runs = make_runs("naive-sgd", lr=1e30, lr_floor=1e30, tasks=3)
        runs, learner, _ = _trained(runs, engine)
        learned: list[int] = []
        outcomes = run_streams(learner, runs.streams, lambda progress: learned.append(progress.task))
        assert all(outcome.diverged for outcome in outcomes)
        assert set(learned) == {0}
        assert all(outcome.matrix.to_lists() == [[None] * 3] * 3 for outcome in outcomes)


def test_a_stack_s_losses_hold_the_one_that_was_not_finite(make_runs: Any) -> None:
    _, spoiled = _spoil(make_runs(), 0)
    steps: list[Step] = []
    learner = spoiled.stacked()
    learner.learn(spoiled.tasks(0), steps.append)
    finite = learner._trainer.losses.isfinite()
    assert finite[: BAD_STEP - 1].all()
    assert finite[BAD_STEP - 1].tolist() == [True, False, True]
    assert finite[:, ::2].all()
