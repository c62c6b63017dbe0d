"""One of each kind added from outside, as CONTRIBUTING.md describes: each takes a class or function and a line."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch import Tensor

import kcl
from kcl.benchmarks.moved_pixels import PermutedPixels
from kcl.benchmarks.registry import BENCHMARKS, Benchmark
from kcl.cli import commands
from kcl.core import settings as core_settings
from kcl.core.metrics import METRICS
from kcl.core.settings import Settings, setting
from kcl.data.digits import DIGITS
from kcl.errors import KclError
from kcl.methods import recipes
from kcl.methods.recipes import METHODS
from kcl.methods.ridge_kernels import KERNELS, RBF
from kcl.methods.sgd import NaiveSGD
from kcl.training.optimizers import OPTIMIZERS, SGD, OptimizerState

pytest.importorskip("sklearn")
RUN = ["--tasks", "2", "--train-per-task", "200", "--device", "cpu", "--quiet"]


def _run(benchmark: str, out: Path, *options: str) -> dict[str, Any]:
    """The result line of a run through the command line."""
    assert commands.main(["run", benchmark, *RUN, "--out", str(out), *options]) == 0
    [line] = (out / "results.jsonl").read_text().splitlines()
    return json.loads(line)


class Cauchy(RBF):
    summary = "1 / (1 + γ‖x − y‖²)"

    def compare(self, model: Any, x: Tensor, y: Tensor) -> Tensor:
        return 1.0 / (1.0 + model.gamma * torch.cdist(x, y).square())


class TestKernel:
    @pytest.fixture(autouse=True)
    def _added(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(KERNELS, "cauchy", Cauchy)

    def test_learns_and_is_listed(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        record = _run("permuted-digits", tmp_path / "out", "--kernel", "cauchy")
        assert record["kernel"] == record["settings"]["kernel"] == "cauchy"
        assert record["average_accuracy"] > 50.0
        assert commands.main(["list", "kernels"]) == 0
        assert "cauchy" in capsys.readouterr().out

    def test_answers_from_a_saved_model(self, tmp_path: Path) -> None:
        model = kcl.ContinualModel(kernel="cauchy", backbone="identity", epochs=1)
        x = torch.cat([torch.zeros(30, 4), torch.ones(30, 4)]) + torch.arange(240.0).view(60, 4) / 1000.0
        model.learn(x, [0] * 30 + [1] * 30, "one")
        saved = kcl.load_model(kcl.save_model(model, tmp_path / "model"))
        for task in ("one", None):
            assert np.array_equal(saved.predict(x, task).label, model.predict(x, task).label)


@dataclass(frozen=True)
class DecaySettings(Settings):
    weight_decay: float = setting(0.01, "share of the weights added to the gradient", 0.0, stackable=True)


class WeightDecay(NaiveSGD):
    name = "weight-decay"
    summary = "naive SGD with weight decay"
    settings_type: ClassVar[type[Settings]] = DecaySettings
    modifies_gradient = True

    def direction(self, weights: Tensor, gradients: Tensor, method_state: Any) -> tuple[Tensor, Any]:
        return gradients[0] + self.settings.weight_decay * weights, {}


class TestBaselineWithASetting:
    @pytest.fixture(autouse=True)
    def _added(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(METHODS, WeightDecay.name, WeightDecay)
        monkeypatch.setitem(recipes.METHOD_RECIPES, WeightDecay.name, {"lr": 0.05})

    def test_learns_with_its_setting(self, tmp_path: Path) -> None:
        method = ["--method", "weight-decay"]
        none = _run("permuted-digits", tmp_path / "none", *method, "--set", "weight_decay=0")
        much = _run("permuted-digits", tmp_path / "much", *method, "--set", "weight_decay=0.2")
        assert (none["settings"]["weight_decay"], none["settings"]["lr"]) == (0.0, 0.05)
        assert none["fingerprint"] != much["fingerprint"]

    def test_no_other_method_has_the_setting(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        assert commands.main(["run", "permuted-digits", *RUN, "--set", "weight_decay=0.1"]) == 2
        assert "weight_decay" in capsys.readouterr().err

    def test_without_a_recipe_it_is_refused(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delitem(recipes.METHOD_RECIPES, WeightDecay.name)
        with pytest.raises(KclError, match="weight-decay has no recipe"):
            recipes.published_settings("permuted-digits", "weight-decay")


class TestBenchmark:
    def test_runs(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        benchmark = Benchmark("digits, permuted, two tasks", DIGITS.load, PermutedPixels, tasks=2)
        monkeypatch.setitem(BENCHMARKS, "two-digits", benchmark)
        with pytest.raises(KclError, match="two-digits has no recipe"):
            recipes.published_settings("two-digits", "kcl")
        monkeypatch.setitem(recipes.BENCHMARK_RECIPES, "two-digits", {"width": 32})
        record = _run("two-digits", tmp_path / "out")
        assert (record["benchmark"], record["settings"]["width"]) == ("two-digits", 32)


class SignSGD(SGD):
    """x ← x − η sign(v)."""

    def displacement(self, state: OptimizerState, gradient: Tensor) -> Tensor:
        velocity = state.moments[0].mul_(state.numbers["momentum"]).add_(gradient)
        return state.numbers["rate"] * velocity.sign()

    def step(self, state: OptimizerState, gradient: Tensor) -> None:
        super(SGD, self).step(state, gradient)


class TestOptimizer:
    def test_trains(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(OPTIMIZERS, "sign-sgd", SignSGD)
        monkeypatch.setitem(core_settings.OPTIMIZERS, "sign-sgd", "SGD by the sign of the momentum")
        record = _run("permuted-digits", tmp_path / "out", "--set", "optimizer=sign-sgd", "lr=0.001")
        assert record["average_accuracy"] > 50.0
        assert not record["diverged"]

    def test_the_choices_are_the_table(self) -> None:
        assert set(core_settings.OPTIMIZERS) == set(OPTIMIZERS)


def test_metric(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(METRICS, "lowest_accuracy", lambda matrix, _: float(np.min(matrix.values[-1])))
    record = _run("permuted-digits", tmp_path / "out")
    assert record["lowest_accuracy"] == min(record["accuracy_matrix"][-1])
