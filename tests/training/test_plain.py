"""A plain stack is the obvious loop: for every method and kernel the same bits as the reference."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from kcl.methods.ridge_kernels import KERNELS
from reference_run import TRAINED

TOGETHER: dict[str, Any] = {
    "soft_targets": 0.5, "monte_carlo_samples": 2, "test_draws": 3, "warm_start": True, "updates_per_batch": 2,
    "epochs": 2, "shared_metric": 0.6, "matched_targets": True,
}  # fmt: skip
IMAGES: dict[str, Any] = {"rotation_labels": True, "test_views": "flip", "augmentation": "flip", "feature_stages": 2}


def _assert_same_bits(runs: Any, difference: Any, tasks: int = 2) -> None:
    """Everything about every run after each task: parameters, buffers, averages, memories, losses, scores."""
    for run in runs.one_by_one():
        plain, reference = run.plain(), run.separate()
        for index in range(min(tasks, run.training_count)):
            steps: list[list[Any]] = [[], []]
            for learner, reports in zip((plain, reference), steps, strict=True):
                learner.learn(run.training_tasks(index), reports.append)
            assert steps[0] == steps[1]
            difference.assert_none(plain, reference, 0.0, sorted(plain.kept))
            assert plain.fingerprints() == reference.fingerprints()
            assert plain.diverged == reference.diverged
            if any(plain.diverged):
                return
        for index in range(tasks):
            scores, expected = plain.scores(run.tasks(index)), reference.scores(run.tasks(index))
            assert torch.equal(scores[0], expected[0])
            assert plain.accuracy(run.tasks(index)) == reference.accuracy(run.tasks(index))
        assert plain.memory_use() == reference.memory_use()


@pytest.mark.parametrize("kernel", KERNELS)
class TestEveryKernel:
    def test_as_published(self, make_runs: Any, difference: Any, kernel: str) -> None:
        _assert_same_bits(make_runs(kernel=kernel), difference)

    def test_with_an_average_of_the_weights(self, make_runs: Any, difference: Any, kernel: str) -> None:
        _assert_same_bits(make_runs(kernel=kernel, weight_average=0.9)[[0]], difference)

    def test_with_all_that_is_particular_to_it(self, make_runs: Any, difference: Any, kernel: str) -> None:
        _assert_same_bits(make_runs(kernel=kernel, samples=35, tasks=3, **TOGETHER), difference, tasks=3)

    def test_with_batchnorm(self, make_runs: Any, difference: Any, kernel: str) -> None:
        runs = make_runs(net="resnet", samples=33, kernel=kernel, weight_average=0.5, batch_norm="coreset")
        _assert_same_bits(runs[[0]], difference)


@pytest.mark.parametrize("kernel", [name for name, kernel in KERNELS.items() if not kernel.inferred])
def test_a_linear_output_that_trains_the_network(make_runs: Any, difference: Any, kernel: str) -> None:
    alone = {"network_loss": "linear", "matched_targets": True, "updates_per_batch": 2}
    _assert_same_bits(make_runs(kernel=kernel, samples=35, **alone), difference)


@pytest.mark.parametrize("method", TRAINED)
class TestEveryMethod:
    @pytest.mark.parametrize("split", [False, True])
    def test_as_published(self, make_runs: Any, difference: Any, method: str, split: bool) -> None:
        _assert_same_bits(make_runs(method, samples=48, tasks=3, split=split), difference, tasks=3)

    @pytest.mark.parametrize(
        "settings",
        [
            {"weight_average": 0.9, "average_ramp": 2.0},
            {"updates_per_batch": 2, "epochs": 2},
            {"optimizer": "muon"},
            {"optimizer": "muon", "weight_average": 0.8, "momentum": 0.0},
            {"momentum": 0.0},
        ],
        ids=str,
    )
    def test_with_other_settings(self, make_runs: Any, difference: Any, method: str, settings: dict[str, Any]) -> None:
        _assert_same_bits(make_runs(method, samples=35, **settings), difference)

    def test_with_batchnorm(self, make_runs: Any, difference: Any, method: str) -> None:
        _assert_same_bits(make_runs(method, "resnet", samples=28, split=True, weight_average=0.7)[[0, 1]], difference)

    def test_with_images_shown_in_several_ways(self, make_runs: Any, difference: Any, method: str) -> None:
        _assert_same_bits(make_runs(method, "resnet", samples=28, split=True, **IMAGES)[[0]], difference)

    @pytest.mark.parametrize("settings", [{}, {"optimizer": "muon"}, {"weight_average": 0.9}], ids=str)
    def test_that_diverges(self, make_runs: Any, difference: Any, method: str, settings: dict[str, Any]) -> None:
        runs = make_runs(method, samples=44, feature_norm="none", lr=1e30, lr_floor=1e30, **settings)
        _assert_same_bits(runs[[0]], difference)
        plain = runs[[0]].plain()
        plain.learn(runs[[0]].training_tasks(0))
        assert plain.diverged == [True]

    def test_that_diverges_with_batchnorm(self, make_runs: Any, difference: Any, method: str) -> None:
        runs = make_runs(method, "resnet", samples=28, split=True, weight_average=0.9, feature_norm="none", lr=1e30)
        _assert_same_bits(runs[[0]], difference)


def test_targets_that_are_learned_beside_muon(make_runs: Any, difference: Any) -> None:
    _assert_same_bits(make_runs(samples=35, optimizer="muon", **TOGETHER), difference)


def test_the_classic_fisher(make_runs: Any, difference: Any) -> None:
    _assert_same_bits(make_runs("ewc", samples=35, ewc_fisher="classic", ewc_fisher_samples=7), difference)


def test_a_plain_stack_holds_one_training(make_runs: Any) -> None:
    with pytest.raises(ValueError, match="one training"):
        make_runs().plain()
