"""`shared_metric`: classifiers of all tasks in a metric made of all coresets."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from kcl.functional.metric import metric_of, scatter_within
from kcl.training.stream_run import run_streams
from one_run import OneRun
from reference_run import as_seen

SHARE = 0.6


def _run(make_runs: Any, **settings: Any) -> tuple[OneRun, Any]:
    """Two tasks learned by one run, with the linear kernel unless another is asked for."""
    all_settings = {"kernel": "linear", "shared_metric": SHARE} | settings
    runs = make_runs("kcl", "resnet", samples=28, split=True, **all_settings)
    run = OneRun(runs.methods()[0], runs.backbones()[0], runs.seeds[0])
    for index in range(2):
        run.learn(runs.training_tasks(index)[0])
    return run, runs.streams[0]


def test_scores_are_those_of_the_ridge_with_the_pooled_penalty(make_runs: Any) -> None:
    run, stream = _run(make_runs)
    model, embedded, scatter = run.answering, {}, torch.zeros(())
    with torch.no_grad():
        for index, kept in run.kept.items():
            memory = as_seen(kept.memory, kept.view)
            embedded[index] = run.method.features(model, memory["inputs"]).double()
            scatter = scatter + scatter_within(embedded[index], memory["targets"].double())
        penalty = torch.linalg.inv(metric_of(scatter, SHARE) @ metric_of(scatter, SHARE))
        for index, kept in run.kept.items():
            features, targets = embedded[index], kept.memory["targets"].double()
            strength, scale, shift = (kept.memory[name].double() for name in ("strength", "scale", "shift"))
            weights = torch.linalg.solve(features.mT @ features + strength * penalty, features.mT @ targets)
            task = stream[index]
            queries = run.method.features(model, task.view(task.test.inputs[task.test.rows])).double()
            scores = run.scores(task).double()
            torch.testing.assert_close(scores, scale * queries @ weights + shift, rtol=1e-3, atol=1e-4)


def test_a_task_s_scores_depend_on_what_is_kept_of_others(make_runs: Any) -> None:
    """And without the setting they do not."""
    for share, changes in ((SHARE, True), (0.0, False)):
        run, stream = _run(make_runs, shared_metric=share)
        before = run.scores(stream[0])
        run.kept[1].memory["inputs"].copy_(run.kept[0].memory["inputs"])
        run.stack.weights_changed()
        assert torch.equal(before, run.scores(stream[0])) is not changes


def test_what_is_asked_in_the_midst_of_a_task_does_not_stay(make_runs: Any) -> None:
    """Of one run and of several: after the task, answers know of it, whatever was asked at its last step."""
    runs = make_runs("kcl", "resnet", samples=28, split=True, kernel="linear", shared_metric=SHARE)
    tested, whole = [(runs[[0]].plain(), runs.stacked()) for _ in range(2)]
    for learner, other in zip(tested, whole, strict=True):
        trained = runs[range(learner.count)]
        for index in range(2):
            tasks, first = trained.training_tasks(index), trained.training_tasks(0)
            on_step = (lambda _, learner=learner, first=first: learner.scores(first)) if index else (lambda _: None)
            learner.learn(tasks, on_step)
            other.learn(tasks, lambda _: None)
        for index in range(2):
            scores = [each.scores(trained.training_tasks(index)) for each in (learner, other)]
            assert all(torch.equal(one, two) for one, two in zip(*scores, strict=True))


def test_in_the_midst_of_a_task_stacked_runs_answer_at_their_present_weights(make_runs: Any) -> None:
    runs = make_runs("kcl", "resnet", samples=28, split=True, kernel="linear", shared_metric=SHARE)
    learner, first = runs.stacked(), runs.training_tasks(0)
    learner.learn(first, lambda _: None)
    learner.scores(first)

    def on_step(_: Any) -> None:
        scores = learner.scores(first)
        learner._evaluator._shared.clear()
        assert all(torch.equal(one, two) for one, two in zip(scores, learner.scores(first), strict=True))

    learner.learn(runs.training_tasks(1), on_step)


@pytest.mark.parametrize("kernel", ["linear", "vrf"])
def test_a_run_that_diverges_does_not_spoil_its_neighbours(make_runs: Any, kernel: str) -> None:
    runs = make_runs("kcl", "mlp", samples=44, feature_norm="none", kernel=kernel, shared_metric=SHARE).but(1, lr=1e12)
    one, two = (run_streams(learner, runs.streams) for learner in (runs.separate(), runs.stacked()))
    for place in (0, 2):
        matrices = [outcomes[place].matrix.average_accuracy for outcomes in (one, two)]
        assert matrices[0] == pytest.approx(matrices[1], abs=3.0)


@pytest.mark.parametrize("kernel", ["vrf", "rbf", "polynomial"])
def test_it_goes_with_other_kernels(make_runs: Any, kernel: str) -> None:
    (run, stream), (plain, _) = (_run(make_runs, kernel=kernel, shared_metric=share) for share in (SHARE, 0.0))
    scores = [learner.scores(stream[0]) for learner in (run, plain)]
    assert all(torch.isfinite(run_scores).all() for run_scores in scores)
    assert not torch.allclose(*scores)
