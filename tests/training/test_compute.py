"""The images that pass the backbone, counted beforehand and while runs learn."""

from __future__ import annotations

from typing import Any

import pytest

from kcl.methods import ewc
from kcl.methods.kcl_settings import KclSettings
from kcl.methods.training_compute import Shape, training_compute
from kcl.nets.mlp import MLP
from kcl.nets.resnet import ResNet18
from reference_run import TRAINED

VIEWS: dict[str, Any] = {"rotation_labels": True, "augmentation": "flip", "updates_per_batch": 2, "test_views": "flip"}


def _counted(runs: Any, monkeypatch: pytest.MonkeyPatch) -> tuple[int, int]:
    """Images that pass and updates, while one run learns its whole stream."""
    images, updates = [0], [0]
    forward, forward_parts = MLP.forward, ResNet18.forward_parts

    def noting(net: Any, x: Any, noise: Any = None) -> Any:
        images[0] += len(x) if noise is not None else 0
        return forward(net, x, noise)

    def noting_parts(net: Any, parts: Any, noise: Any) -> Any:
        images[0] += sum(map(len, parts))
        return forward_parts(net, parts, noise)

    monkeypatch.setattr(MLP, "forward", noting)
    monkeypatch.setattr(ResNet18, "forward_parts", noting_parts)
    learner = runs[[0]].plain()
    for index in range(runs.training_count):
        steps: list[Any] = []
        learner.learn(runs[[0]].training_tasks(index), steps.append)
        updates[0] += len(steps)
    return images[0], updates[0]


def _expected(runs: Any) -> tuple[int, int]:
    tasks = [Shape(len(task.train), task.ways) for task in runs.streams[0]]
    compute = training_compute(runs.method, runs.settings[0], tasks)
    assert compute.samples == sum(task.samples for task in tasks)
    assert compute.images_per_sample == pytest.approx(compute.images / compute.samples)
    return compute.images, compute.updates


@pytest.mark.parametrize("method", TRAINED)
class TestTheCountIsWhatPasses:
    def test_with_the_published_settings(self, method: str, monkeypatch: pytest.MonkeyPatch, make_runs: Any) -> None:
        runs = make_runs(method, samples=47, tasks=3, epochs=2)
        assert _counted(runs, monkeypatch) == _expected(runs)

    def test_with_views_and_updates(self, method: str, monkeypatch: pytest.MonkeyPatch, make_runs: Any) -> None:
        runs = make_runs(method, "resnet", samples=33, split=True, recalled_per_step=7, memory_per_class=3, **VIEWS)
        assert _counted(runs, monkeypatch) == _expected(runs)

    def test_with_a_last_sample_that_joins_the_batch_before(
        self, method: str, monkeypatch: pytest.MonkeyPatch, make_runs: Any
    ) -> None:
        coreset = 8 if method == "kcl" else 0
        runs = make_runs(method, "resnet", samples=21 + coreset, split=True, backbone="cifar-resnet")
        assert _counted(runs, monkeypatch) == _expected(runs)


def test_a_coreset_of_all_samples_leaves_no_updates() -> None:
    assert training_compute("kcl", KclSettings(coreset_size_per_class=20), [Shape(200, 10)]).images_per_update == 0.0


def test_a_linear_output_does_not_pass_the_coreset(make_runs: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    runs = make_runs("kcl", "resnet", samples=33, split=True, network_loss="linear", kernel="rff", **VIEWS)
    images, updates = _counted(runs, monkeypatch)
    assert (images, updates) == _expected(runs)


def test_matched_targets_look_at_every_sample_once_more(make_runs: Any) -> None:
    runs = make_runs("kcl", "resnet", samples=33, split=True, **VIEWS)
    matched = make_runs("kcl", "resnet", samples=33, split=True, matched_targets=True, **VIEWS)
    samples = sum(len(task.train) for task in runs.streams[0])
    assert _expected(matched)[0] == _expected(runs)[0] + 4 * samples


def test_a_classic_fisher_passes_its_samples_too(make_runs: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    classic = make_runs("ewc", "resnet", samples=30, split=True, ewc_fisher="classic", ewc_fisher_samples=7, **VIEWS)
    fisher, seen = ewc.diagonal_fisher, []

    def noting(log_probabilities: Any, parameters: Any, inputs: Any) -> Any:
        seen.append(len(inputs))
        return fisher(log_probabilities, parameters, inputs)

    monkeypatch.setattr(ewc, "diagonal_fisher", noting)
    _, updates = _counted(classic, monkeypatch)
    without = make_runs("ewc", "resnet", samples=30, split=True, **VIEWS)
    assert _expected(without)[1] == updates
    assert _expected(classic)[0] - _expected(without)[0] == sum(seen) == 2 * 7 * 4
