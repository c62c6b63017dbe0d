"""`matched_targets`: coreset targets that stand for the class means of all samples of a task."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from kcl.functional.metric import metric_of, scatter_within
from kcl.methods import class_heads, views
from kcl.training.stream_run import run_streams
from one_run import OneRun
from reference_run import as_seen


def _run(make_runs: Any, backbone: str = "resnet", **settings: Any) -> tuple[OneRun, Any]:
    """Two tasks learned by one run."""
    changes = {"kernel": "linear", "matched_targets": True} | settings
    runs = make_runs("kcl", backbone, samples=28, split=True, **changes)
    run = OneRun(runs.methods()[0], runs.backbones()[0], runs.seeds[0])
    for index in range(2):
        run.learn(runs.training_tasks(index)[0])
    return run, runs.streams[0]


@torch.no_grad()
@pytest.mark.parametrize("turns", [1, 4])
def test_the_coreset_has_nearly_the_class_means_of_its_task(make_runs: Any, turns: int) -> None:
    """Of the last task, whose network is still the present one: nearer than by its samples alone, in every rotation."""
    run, stream = _run(make_runs, rotation_labels=turns == 4)
    kept, task = run.kept[1], stream[1]

    def features(stored: Any) -> Any:
        return run.method.features(run.model, views.copies(task.view.scale(stored), turns)).unflatten(0, (turns, -1))

    shown = run.method.show(as_seen(kept.memory, kept.view))
    coreset = features(kept.memory["inputs"]).flatten(0, 1)
    everything, labels = features(task.moved(torch.arange(len(task.train)))), task.train.labels
    whole = torch.stack([everything[:, labels == label].mean(1) for label in range(2)]).flatten(0, 1)
    counts = shown["targets"].sum(0)[:, None]
    by_samples, matched = (shown[name].flatten(1).float().mT @ coreset / counts for name in ("targets", "matched"))
    assert (matched - whole).norm() < 0.7 * (by_samples - whole).norm()
    torch.testing.assert_close(shown["matched"].flatten(1).sum(0), shown["targets"].float().sum(0))


@torch.no_grad()
def test_the_head_is_the_ridge_regression_on_these_targets(make_runs: Any) -> None:
    run, stream = _run(make_runs)
    for index, kept in run.kept.items():
        memory, task = as_seen(kept.memory, kept.view), stream[index]
        anchors = run.method.features(run.answering, memory["inputs"]).double()
        strength, scale, shift = (memory[name].double() for name in ("strength", "scale", "shift"))
        targets = memory["matched"].flatten(1).double()
        gram = anchors.mT @ anchors + strength * torch.eye(anchors.shape[1], dtype=torch.float64)
        queries = run.method.features(run.answering, task.view(task.test.inputs[task.test.rows])).double()
        expected = scale * queries @ torch.linalg.solve(gram, anchors.mT @ targets) + shift
        torch.testing.assert_close(run.scores(task).double(), expected, rtol=1e-3, atol=1e-4)


@torch.no_grad()
def test_class_means_of_all_tasks_are_those_of_these_targets(make_runs: Any) -> None:
    run, stream = _run(make_runs, scenario="class", class_head="shared-covariance", class_features="linear")
    means, anchors, labels = [], [], []
    for place, kept in enumerate(run.kept.values()):
        memory = as_seen(kept.memory, kept.view)
        x = torch.nn.functional.pad(run.method.features(run.answering, memory["inputs"]).double(), (0, 1), value=1.0)
        means.append(memory["matched"].flatten(1).double().mT @ x / memory["targets"].sum(0)[:, None])
        anchors.append(x)
        labels.append(memory["targets"].argmax(1) + 2 * place)
    scatter = scatter_within(torch.cat(anchors), torch.nn.functional.one_hot(torch.cat(labels)).double())
    metric = metric_of(scatter, class_heads.SHRINKAGE)
    for task in (stream[0], stream[1]):
        x = run.method.features(run.answering, task.view(task.test.inputs[task.test.rows])).double()
        x = torch.nn.functional.pad(x, (0, 1), value=1.0) @ metric
        distances = torch.cdist(x, torch.cat(means) @ metric).square() / 2.0
        scores = run.scores(task).double()
        torch.testing.assert_close(scores - scores[:, :1], distances[:, :1] - distances, rtol=1e-3, atol=1e-3)


def test_training_is_the_same_without_them(make_runs: Any) -> None:
    (plain, _), (matched, _) = (_run(make_runs, matched_targets=chosen) for chosen in (False, True))
    assert all(torch.equal(plain.model.state_dict()[name], each) for name, each in matched.model.state_dict().items())
    assert matched.memory_use()["bytes"] > plain.memory_use()["bytes"]


def test_stacked_runs_get_what_each_gets_alone(make_runs: Any) -> None:
    runs = make_runs("kcl", "mlp", samples=28, split=True, kernel="linear", matched_targets=True)
    together = run_streams(runs.stacked(), runs.streams)
    for run, outcome in enumerate(together):
        [alone] = run_streams(runs[[run]].plain(), runs[[run]].streams)
        assert torch.allclose(
            torch.tensor(alone.matrix.to_lists()[-1]), torch.tensor(outcome.matrix.to_lists()[-1]), atol=5.0
        )
