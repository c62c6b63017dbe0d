"""In miniature on real MNIST, each baseline does what it is there for. Accuracies of whole streams are in `results`."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from kcl.benchmarks.moved_pixels import PermutedMNIST
from kcl.methods.ewc import ElasticWeightConsolidation
from kcl.methods.recipes import METHODS, published_backbone, select_settings
from kcl.nets.flat import Layout
from kcl.nets.mlp import MLP
from kcl.training.stream_run import Outcome, run_streams
from one_run import OneRun

TASKS, SEEDS = 4, (0, 1)
ALIKE = {
    "lr": 0.1, "lr_decay": 1.0, "momentum": 0.0, "dropout": 0.0, "width": 64, "epochs": 4, "memory_per_class": 10,
}  # fmt: skip


@pytest.fixture(scope="module")
def outcomes(data_dir: Path) -> dict[str, list[Outcome]]:
    """Four tasks of 800 samples in four epochs, two seeds, all methods with the same settings."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # a fixture of a module comes before the one that sees to this
    found: dict[str, list[Outcome]] = {}
    for name in ("naive-sgd", "a-gem", "er-reservoir", "multi-task"):
        for seed in SEEDS:
            stream = PermutedMNIST(TASKS, seed, 800, data_dir)
            method = METHODS[name](select_settings(name, ALIKE), 10, 10 * TASKS)
            run = OneRun(method, lambda settings=method.settings: published_backbone((1, 28, 28), settings), seed)
            found.setdefault(name, []).extend(run_streams(run.stack, [stream]))
    torch.set_num_threads(threads)
    return found


def _forgetting(outcomes: list[Outcome]) -> float:
    values = [outcome.matrix.forgetting for outcome in outcomes]
    return sum(value for value in values if value is not None) / len(values)


@pytest.mark.data
class TestOnMNIST:
    @pytest.mark.parametrize(("method", "share"), [("a-gem", 0.7), ("er-reservoir", 0.3)])
    def test_forgets_less_than_naive_sgd(self, outcomes: dict[str, list[Outcome]], method: str, share: float) -> None:
        assert _forgetting(outcomes["naive-sgd"]) > 0.05
        assert _forgetting(outcomes[method]) < share * _forgetting(outcomes["naive-sgd"])

    def test_learns_every_task(self, outcomes: dict[str, list[Outcome]]) -> None:
        for own in outcomes.values():
            assert all((outcome.matrix.average_accuracy or 0.0) > 70.0 for outcome in own)

    def test_keeps_what_it_says(self, outcomes: dict[str, list[Outcome]]) -> None:
        samples = {name: own[0].memory["samples"] for name, own in outcomes.items()}
        assert samples == {"naive-sgd": 0, "a-gem": 400, "er-reservoir": 400, "multi-task": 3200}
        assert outcomes["a-gem"][0].memory["bytes"] >= 400 * 784

    @pytest.mark.parametrize(("fisher", "strength"), [("running", 3.0), ("classic", 1.0)])
    def test_ewc_holds_back_the_weights_that_mattered(self, data_dir: Path, fisher: str, strength: float) -> None:
        """Of the thousandth of the weights with the largest Fisher; the penalty is felt, and the others move on."""
        moved, penalties = [], []
        for own in (0.0, strength):
            settings = select_settings("ewc", ALIKE).replace(
                ewc_fisher=fisher, ewc_strength=own, ewc_fisher_samples=50, epochs=1
            )
            method = ElasticWeightConsolidation(settings, 10)
            run = OneRun(method, lambda: MLP((1, 28, 28), 64, 2, 0.0), 0)
            stream, layout = PermutedMNIST(2, 0, 800, data_dir), Layout(run.model)
            run.learn(stream[0])
            before, method_state = layout.weights(run.model), dict(run.method_state or {})
            run.learn(stream[1])
            after = layout.weights(run.model)
            penalties.append(float(method.penalty(after, method_state)))
            most = method_state["importance"].topk(len(before) // 1000).indices
            moved.append([float((after - before)[places].norm()) for places in (most, slice(None))])
        assert penalties[0] == 0.0
        assert penalties[1] > 0.01
        assert moved[1][0] < 0.7 * moved[0][0]
        assert moved[1][1] > 0.5 * moved[0][1]
