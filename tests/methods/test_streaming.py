"""Sums in the engine: each task's solution is that of batch ridge regression, and nothing is trained."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from kcl.benchmarks.moved_pixels import PermutedDigits
from kcl.cli import commands
from kcl.core.randomness import numpy_generator
from kcl.errors import KclError
from kcl.methods.feature_maps import FOR_MANY_RUNS
from kcl.methods.streaming import StreamingRidge, StreamingRidgeSettings
from kcl.nets.backbone import Identity
from kcl.training.stack import RunStack
from kcl.training.state import build_model

linear_model = pytest.importorskip("sklearn.linear_model")
BASES = 60


def _settings(**changes: Any) -> StreamingRidgeSettings:
    return StreamingRidgeSettings(backbone="identity", bases=BASES, **changes)


def _stack(stream: Any, seeds: list[int], **changes: Any) -> RunStack:
    methods = [StreamingRidge(_settings(**changes), 10) for _ in seeds]
    return RunStack(methods, [lambda: Identity(stream.input_shape)] * len(seeds), seeds, "cpu", plain=len(seeds) == 1)


@pytest.mark.parametrize("features", FOR_MANY_RUNS)
@pytest.mark.parametrize("samples", [40, 300])
def test_a_task_is_solved_as_a_whole(features: str, samples: int) -> None:
    task = PermutedDigits(tasks=1, train_per_task=samples)[0]
    method = StreamingRidge(_settings(features=features), 10)
    model = build_model(method, lambda: Identity((1, 8, 8)), 0)
    positions, memory = method.begin_task(model, task, numpy_generator(0, "unused"))
    assert len(positions) == 0
    psi = model(task.view.scale(task.moved(torch.arange(samples)))).numpy()
    targets = np.eye(10)[task.train.labels.numpy()]
    ridge = linear_model.Ridge(alpha=float(memory["strength"]), fit_intercept=False).fit(psi, targets)
    np.testing.assert_allclose(memory["solution"].T, ridge.coef_, rtol=0, atol=1e-7)
    np.testing.assert_allclose(memory["cross"], psi.T @ targets, atol=1e-9)
    assert memory["counts"].tolist() == targets.sum(0).tolist()
    dimension = psi.shape[1]
    moment = samples * dimension if samples < dimension else dimension * (dimension + 1) // 2
    expected = 8 * (moment + 2 * dimension * 10 + 2 * 10 + 1)
    assert method.memory_use([memory], {}) == {"samples": 0, "bytes": expected}


def test_runs_trained_together_are_what_they_are_alone_and_nothing_is_trained() -> None:
    stream, seeds = PermutedDigits(tasks=2, train_per_task=100), [3, 4]
    together, alone = _stack(stream, seeds), [_stack(stream, [seed]) for seed in seeds]
    before = [{name: tensor.clone() for name, tensor in model.state_dict().items()} for model in together.models]
    for index in range(2):
        together.learn([stream[index]] * 2)
        for run in alone:
            run.learn([stream[index]])
    scores = together.scores([stream[0]] * 2)
    for run, score, model, old in zip(alone, scores, together.models, before, strict=True):
        torch.testing.assert_close(run.scores([stream[0]])[0], score, rtol=0, atol=1e-9)
        assert all(torch.equal(tensor, old[name]) for name, tensor in model.state_dict().items())
    assert not torch.equal(*scores)


def test_stopped_after_a_task_it_goes_on_to_the_same_numbers() -> None:
    stream = PermutedDigits(tasks=2, train_per_task=100)
    whole, first = _stack(stream, [0]), _stack(stream, [0])
    first.learn([stream[0]])
    second = _stack(stream, [0])
    second.restore(first.saved(), [list(stream)])
    second.learn([stream[1]])
    for index in range(2):
        whole.learn([stream[index]])
    assert whole.fingerprints() == second.fingerprints()


def test_the_command_tells_accuracy_and_bytes(tmp_path: Path) -> None:
    command = ["run", "permuted-digits", "--method", "streaming-ridge", "--tasks", "2", "--device", "cpu", "--quiet"]
    assert commands.main([*command, "--set", "features=relu", "bases=128", "--out", str(tmp_path / "out")]) == 0
    [record] = map(json.loads, (tmp_path / "out" / "results.jsonl").read_text().splitlines())
    assert record["average_accuracy"] > 85.0
    assert record["forgetting"] == 0.0
    assert record["memory"] == {"samples": 0, "bytes": 2 * 8 * (128 * 129 // 2 + 2 * 128 * 10 + 2 * 10 + 1)}


def test_views_have_no_use() -> None:
    with pytest.raises(KclError, match="augmentation"):
        StreamingRidge(_settings(augmentation="flip"), 10)
