"""Runs that were stopped and gone on with: every bit as if they had never been stopped."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from kcl.errors import KclError
from kcl.training import checkpoint
from kcl.training.checkpointer import Checkpointer, Every, numbered
from kcl.training.stack import RunStack
from kcl.training.stopping import Interrupted, Stop
from kcl.training.stream_run import Outcome, Progress, _History, run_streams
from reference_run import TRAINED

ENGINES = ("plain", "stacked")
AT_SIGNALS = Every(seconds=1e9, thrifty=False)


def _facts(outcomes: Sequence[Outcome]) -> list[Any]:
    """Everything about runs but the time they took and how often they were stopped."""
    return [
        (outcome.matrix.to_lists(), outcome.initial_accuracy, outcome.diverged, outcome.memory, outcome.fingerprint)
        for outcome in outcomes
    ]


def _until(calls: int, stop: Stop) -> Callable[[Progress], None]:
    """A signal after so many reports of progress."""
    left = [calls]

    def watch(_: Progress) -> None:
        left[0] -= 1
        if left[0] == 0:
            stop.signal = 15

    return watch


def _stopped_often(runs: Any, engine: str, folder: Path, steps: int) -> tuple[list[Outcome], int]:
    """The runs with a signal after every few reports, each time begun in a new learner."""
    for times in range(1000):
        stop = Stop()
        checkpointer = Checkpointer(folder, {}, AT_SIGNALS, stop)
        try:
            return run_streams(runs.learner(engine), runs.streams, _until(steps, stop), checkpointer), times
        except Interrupted:
            assert 1 <= len(numbered(folder)) <= 2
    raise AssertionError("it never ends")


def _assert_goes_on(runs: Any, engine: str, folder: Path, steps: int) -> None:
    """Stopped after every few reports, the runs end as if they had never been."""
    for place, group in enumerate(runs.groups(engine)):
        expected = run_streams(group.learner(engine), group.streams)
        outcomes, times = _stopped_often(group, engine, folder / str(place), steps)
        assert times > 1
        assert _facts(outcomes) == _facts(expected)
        assert [outcome.resumed for outcome in outcomes] == [times] * len(outcomes)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("method", TRAINED)
class TestEveryMethod:
    @pytest.mark.parametrize("steps", [1, 7])
    def test_goes_on_as_if_never_stopped(
        self, make_runs: Any, tmp_path: Path, method: str, engine: str, steps: int
    ) -> None:
        _assert_goes_on(make_runs(method, epochs=2), engine, tmp_path, steps)

    def test_with_batchnorm_and_classes_split_over_tasks(
        self, make_runs: Any, tmp_path: Path, method: str, engine: str
    ) -> None:
        _assert_goes_on(make_runs(method, net="resnet", split=True), engine, tmp_path, 5)


@pytest.mark.parametrize("engine", ENGINES)
class TestSpecialCases:
    @pytest.mark.parametrize("kernel", ["rff", "rbf", "linear", "vrf-uninformative"])
    def test_every_kind_of_kernel(self, make_runs: Any, tmp_path: Path, engine: str, kernel: str) -> None:
        _assert_goes_on(make_runs("kcl", kernel=kernel), engine, tmp_path, 4)

    def test_a_linear_output_that_trains_the_network(self, make_runs: Any, tmp_path: Path, engine: str) -> None:
        """It is task state, lost when a task ends and needed in its middle."""
        light = {"kernel": "linear", "network_loss": "linear", "matched_targets": True, "weight_average": 0.8}
        _assert_goes_on(make_runs("kcl", updates_per_batch=2, **light), engine, tmp_path, 4)

    def test_the_classic_fisher(self, make_runs: Any, tmp_path: Path, engine: str) -> None:
        _assert_goes_on(make_runs("ewc", ewc_fisher="classic", ewc_fisher_samples=5), engine, tmp_path, 4)

    def test_a_run_that_diverges_stays_as_it_was(self, make_runs: Any, tmp_path: Path, engine: str) -> None:
        runs = make_runs("naive-sgd").but(1, lr=1e30)
        if engine == "plain":
            runs = runs[[1]]
        expected = run_streams(runs.learner(engine), runs.streams)
        assert [outcome.diverged for outcome in expected] == ([True] if engine == "plain" else [False, True, False])
        outcomes, _ = _stopped_often(runs, engine, tmp_path, 1 if engine == "plain" else 2)
        assert _facts(outcomes) == _facts(expected)

    def test_an_interrupted_test_is_done_again(
        self, make_runs: Any, tmp_path: Path, engine: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Signals while accuracies are measured, before anything was learned and after."""
        runs = make_runs("naive-sgd").groups(engine)[0]
        expected = run_streams(runs.learner(engine), runs.streams)
        accuracy, calls = RunStack.accuracy, [0]

        def interrupted(self: Any, tasks: Any) -> Any:
            calls[0] += 1
            if calls[0] in (2, 5, 8):
                raise Interrupted(2)
            return accuracy(self, tasks)

        monkeypatch.setattr(RunStack, "accuracy", interrupted)
        stops = 0
        while True:
            try:
                outcomes = run_streams(
                    runs.learner(engine), runs.streams, checkpointer=Checkpointer(tmp_path, {}, AT_SIGNALS)
                )
                break
            except Interrupted:
                stops += 1
        assert stops == 3
        assert _facts(outcomes) == _facts(expected)

    def test_saving_changes_nothing(self, make_runs: Any, tmp_path: Path, engine: str) -> None:
        runs = make_runs("kcl").groups(engine)[0]
        expected = run_streams(runs.learner(engine), runs.streams)
        checkpointer = Checkpointer(tmp_path, {}, Every(steps=1, seconds=None, thrifty=False))
        assert _facts(run_streams(runs.learner(engine), runs.streams, checkpointer=checkpointer)) == _facts(expected)
        assert checkpointer.saves > 10
        assert len(numbered(tmp_path)) == 2
        last = run_streams(runs.learner(engine), runs.streams, checkpointer=checkpointer)
        assert _facts(last) == _facts(expected), "gone on with after its end"

    def test_a_corrupt_newest_falls_back_to_the_one_before(self, make_runs: Any, tmp_path: Path, engine: str) -> None:
        runs = make_runs("a-gem").groups(engine)[0]
        expected = run_streams(runs.learner(engine), runs.streams)
        stop, messages = Stop(), list[str]()
        checkpointer = Checkpointer(tmp_path, {}, Every(steps=3, seconds=None, thrifty=False), stop, messages.append)
        with pytest.raises(Interrupted):
            run_streams(runs.learner(engine), runs.streams, _until(7, stop), checkpointer)
        older, newer = numbered(tmp_path)
        newer.write_bytes(newer.read_bytes()[:-1])
        checkpointer = Checkpointer(tmp_path, {}, AT_SIGNALS, say=messages.append)
        assert _facts(run_streams(runs.learner(engine), runs.streams, checkpointer=checkpointer)) == _facts(expected)
        assert len(messages) == 1
        assert newer.name in messages[0]
        assert older not in numbered(tmp_path), "it went when two newer ones were whole"
        assert all(checkpoint.read(path) for path in numbered(tmp_path))
        for path in numbered(tmp_path):
            path.write_bytes(b"")
        with pytest.raises(KclError, match="delete"):
            checkpointer.newest()


def test_a_checkpoint_of_other_data_is_refused(make_runs: Any, tmp_path: Path) -> None:
    runs, stop = make_runs("kcl", tasks=3)[[0]], Stop()
    with pytest.raises(Interrupted):
        run_streams(runs.plain(), runs.streams, _until(10, stop), Checkpointer(tmp_path, {}, AT_SIGNALS, stop))
    for stream in runs.streams:
        stream.dataset.train_inputs[:] = 255 - stream.dataset.train_inputs
    with pytest.raises(KclError, match="data have changed"):
        run_streams(runs.plain(), runs.streams, checkpointer=Checkpointer(tmp_path, {}, AT_SIGNALS))


def _spoil(tree: dict[str, Any], how: str, random: torch.Generator) -> None:
    """Change one tensor somewhere in a checkpoint."""
    place, names = tree, list(tree)
    while True:
        name = names[int(torch.randint(len(names), (), generator=random))]
        if not isinstance(place[name], dict) or not place[name]:
            break
        if how == "a tensor for many" and torch.rand((), generator=random) < 0.5:
            break
        place, names = place[name], list(place[name])
    if how == "missing":
        del place[name]
    elif how == "renamed":
        place["other"] = place.pop(name)
    elif how == "a tensor for many":
        place[name] = torch.tensor(1)
    elif how == "larger":
        place[name] = torch.zeros(3, 5)
    else:
        place[name] = (
            torch.zeros(place[name].shape, dtype=torch.float16) if isinstance(place[name], torch.Tensor) else 1
        )


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("method", ["kcl", "ewc", "er-reservoir", "multi-task"])
@pytest.mark.parametrize("how", ["missing", "renamed", "larger", "another type", "a tensor for many"])
def test_a_whole_checkpoint_that_does_not_fit_is_refused(
    make_runs: Any, tmp_path: Path, method: str, engine: str, how: str
) -> None:
    """Crafted: the digest is right, the content is not. One sentence, never a traceback."""
    runs, stop = make_runs(method, tasks=3).groups(engine)[0], Stop()
    with pytest.raises(Interrupted):
        run_streams(runs.learner(engine), runs.streams, _until(8, stop), Checkpointer(tmp_path, {}, AT_SIGNALS, stop))
    path = numbered(tmp_path)[-1]
    random = torch.Generator().manual_seed(0)
    refused = []
    for number in range(12):
        saved = checkpoint.read(path)
        _spoil(saved.tensors, how, random)
        other = tmp_path / f"other {number}"
        checkpoint.write(other / path.name, saved)
        try:
            run_streams(runs.learner(engine), runs.streams, checkpointer=Checkpointer(other, {}, AT_SIGNALS))
        except KclError as error:
            refused.append(str(error))
    assert refused
    assert not any("\n" in message for message in refused)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(
    "changes",
    [
        {"ledger": None},
        {"ledger": []},
        {"ledger": {"learned": 1}},
        {"stacked runs": 2},
        {"stacked runs": None},
        {"step": -1},
        {"step": "1"},
        {"step": 0.5},
        {"step": 2**60},
    ],
)
def test_what_a_checkpoint_says_must_make_sense(
    make_runs: Any, tmp_path: Path, engine: str, changes: dict[str, Any]
) -> None:
    runs, stop = make_runs("ewc").groups(engine)[0], Stop()
    with pytest.raises(Interrupted):
        run_streams(runs.learner(engine), runs.streams, _until(3, stop), Checkpointer(tmp_path, {}, AT_SIGNALS, stop))
    path = numbered(tmp_path)[-1]
    saved = checkpoint.read(path)
    checkpoint.write(path, checkpoint.Saved(saved.tensors, saved.about | changes))
    with pytest.raises(KclError, match="does not fit"):
        run_streams(runs.learner(engine), runs.streams, checkpointer=Checkpointer(tmp_path, {}, AT_SIGNALS))


@pytest.mark.parametrize("older", [False, True])
def test_the_accuracies_of_long_streams_are_kept_beside_the_text(older: bool) -> None:
    """Older checkpoints hold them as text, which has a limit."""
    history, again = _History(2, 300), _History(2, 300)
    history.matrices[1].record(3, 2, 100.0 / 3.0)
    saved = history.saved()
    assert len(json.dumps(saved.about)) < 1000
    if older:
        rows = [matrix.to_lists() for matrix in history.matrices]
        saved = checkpoint.Saved({}, {"ledger": saved.about["ledger"] | {"matrices": rows}})
    again.restore(saved)
    assert [matrix.to_lists() for matrix in again.matrices] == [matrix.to_lists() for matrix in history.matrices]
