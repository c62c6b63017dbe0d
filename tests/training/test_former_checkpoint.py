"""A checkpoint of one run as versions before the single engine saved it: the run goes on to the same bits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from kcl.errors import KclError
from kcl.methods.recipes import METHODS
from kcl.methods.ridge_kernels import KERNELS
from kcl.training import checkpoint
from kcl.training.checkpoint import Saved
from reference_run import ReferenceRun


class Stopped(Exception):
    pass


def _former(run: ReferenceRun, step: int | None) -> Saved:
    """The state of a run in the former format. `step`: those done of the task it is in."""
    tree = run.state()
    if run.midway is not None:
        noise, optimizer, trained = run.midway
        parameters = [
            *(parameter for parameter in run.model.parameters() if parameter.requires_grad),
            *trained.values(),
        ]
        tree["noise"] = noise.generator.get_state()
        tree["momentum"] = {}
        if run.method.settings.momentum:
            buffers = [optimizer.state.get(parameter, {}).get("momentum_buffer") for parameter in parameters]
            tree["momentum"] = {
                str(place): torch.zeros_like(parameter) if buffer is None else buffer
                for place, (parameter, buffer) in enumerate(zip(parameters, buffers, strict=True))
            }
        if trained:
            tree["trained"] = {name: tensor.detach() for name, tensor in trained.items()}
    return Saved({"0": tree}, {"separate runs": [{"step": step, "diverged": run.diverged}]})


def _stopped(runs: Any, learned: int, steps: int) -> Saved:
    """After `learned` tasks and `steps` steps of the next."""
    run, done = runs.separate().runs[0], [0]

    def between_steps() -> None:
        done[0] += 1
        if done[0] == steps:
            raise Stopped

    for index in range(learned):
        run.learn(runs.training_tasks(index)[0])
    if not steps:
        return _former(run, None)
    with pytest.raises(Stopped):
        run.learn(runs.training_tasks(learned)[0], between_steps=between_steps)
    return _former(run, steps)


def _assert_goes_on(runs: Any, difference: Any, folder: Path, learned: int, steps: int) -> None:
    """By way of a file, as it would come."""
    path = folder / "00000001.safetensors"
    checkpoint.write(path, _stopped(runs, learned, steps))
    resumed, whole = runs.plain(), runs.plain()
    resumed.restore(checkpoint.read(path), [[runs.training_tasks(index)[0] for index in range(runs.training_count)]])
    for index in range(runs.training_count):
        whole.learn(runs.training_tasks(index))
    reports: list[Any] = []
    for index in range(learned, runs.training_count):
        resumed.learn(runs.training_tasks(index), reports.append)
    assert reports[0].step == steps + 1
    difference.assert_none(resumed, whole, 0.0, sorted(whole.kept))
    assert resumed.fingerprints() == whole.fingerprints()
    for index in range(len(runs.streams[0])):
        assert torch.equal(resumed.scores(runs.tasks(index))[0], whole.scores(runs.tasks(index))[0])


SETTINGS: list[dict[str, Any]] = [
    {},
    {"weight_average": 0.8},
    {"momentum": 0.0},
    {"optimizer": "muon"},
    {"updates_per_batch": 2, "epochs": 2},
]
WHERE = pytest.mark.parametrize(("learned", "steps"), [(0, 2), (1, 0), (1, 1), (1, 3)])


@WHERE
@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_goes_on_to_the_same_bits(
    make_runs: Any, difference: Any, tmp_path: Path, settings: dict[str, Any], learned: int, steps: int
) -> None:
    _assert_goes_on(make_runs(**settings)[[0]], difference, tmp_path, learned, steps)


@WHERE
@pytest.mark.parametrize("settings", [{}, {"optimizer": "muon", "weight_average": 0.8}, {"momentum": 0.0}], ids=str)
def test_with_learned_targets(
    make_runs: Any, difference: Any, tmp_path: Path, settings: dict[str, Any], learned: int, steps: int
) -> None:
    _assert_goes_on(make_runs(soft_targets=0.5, **settings)[[0]], difference, tmp_path, learned, steps)


@pytest.mark.parametrize("kernel", KERNELS)
def test_every_kernel(make_runs: Any, difference: Any, tmp_path: Path, kernel: str) -> None:
    _assert_goes_on(make_runs(kernel=kernel)[[0]], difference, tmp_path, 1, 2)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("net", ["mlp", "resnet"])
def test_every_method(make_runs: Any, difference: Any, tmp_path: Path, method: str, net: str) -> None:
    runs = make_runs(method, net, samples=28, split=True, weight_average=0.7)[[0]]
    _assert_goes_on(runs, difference, tmp_path, runs.training_count - 1, 1)


@pytest.mark.parametrize("method", ["kcl", "ewc", "er-reservoir"])
def test_between_tasks_with_batchnorm(make_runs: Any, difference: Any, tmp_path: Path, method: str) -> None:
    _assert_goes_on(make_runs(method, "resnet", samples=28, split=True)[[0]], difference, tmp_path, 1, 0)


def test_a_run_that_had_diverged_is_still_diverged(make_runs: Any) -> None:
    runs = make_runs(feature_norm="none", lr=1e30)[[0]]
    run, resumed = runs.separate().runs[0], runs.plain()
    run.learn(runs.tasks(0)[0])
    resumed.restore(_former(run, None), [[runs.tasks(0)[0], runs.tasks(1)[0]]])
    assert resumed.diverged == [True]


def test_several_runs_of_the_former_format_are_refused(make_runs: Any) -> None:
    """`--runs-at-once` on a CPU trained them one after another in one group."""
    runs = make_runs()[[0]]
    tensors, _ = _stopped(runs, 1, 0)
    several = Saved(tensors | {"1": tensors["0"]}, {"separate runs": [{"step": None, "diverged": False}] * 2})
    with pytest.raises(KclError, match="several runs"):
        runs.plain().restore(several, [[runs.tasks(0)[0], runs.tasks(1)[0]]])


@pytest.mark.parametrize("part", ["model", "noise", "trained", "average"])
def test_one_with_a_part_missing_is_refused(make_runs: Any, part: str) -> None:
    runs = make_runs(soft_targets=0.5, weight_average=0.8)[[0]]
    saved = _stopped(runs, 1, 2)
    del saved.tensors["0"][part]
    with pytest.raises(KclError):
        _resume(runs, saved)


@pytest.mark.parametrize("part", ["model", "momentum", "noise", "kept", "trained", "average", "carried"])
@pytest.mark.parametrize("how", ["a tensor for many", "a part of it missing", "another shape"])
def test_one_that_does_not_fit_is_refused(make_runs: Any, part: str, how: str) -> None:
    runs = (make_runs("ewc") if part == "carried" else make_runs(**TARGETS))[[0]]
    saved = _stopped(runs, 1, 2)
    whole = saved.tensors["0"][part]
    if how == "a tensor for many" or part == "noise":
        saved.tensors["0"][part] = torch.ones(1)
    elif how == "another shape":
        first = next(iter(whole))
        whole[first] = torch.ones(3, 1, 4)
    else:
        inner = whole["0"] if part == "kept" else whole
        del inner[next(iter(inner))]
        if not inner:
            inner["another name"] = torch.ones(1)
    with pytest.raises(KclError):
        _resume(runs, saved)


TARGETS = {"soft_targets": 0.5, "weight_average": 0.8}


def _resume(runs: Any, saved: Saved) -> None:
    learner = runs.plain()
    learner.restore(saved, [[runs.tasks(index)[0] for index in range(2)]])
    for index in range(len(learner.kept), 2):
        learner.learn(runs.tasks(index))
