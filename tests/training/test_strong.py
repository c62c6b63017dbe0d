"""The ingredients of the strong recipe: together and alone, for every method they go with, stacked and plain."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor, nn

from kcl.core.randomness import numpy_generator
from kcl.methods.ridge_kernels import KERNELS
from kcl.ops import torch_private
from kcl.training.checkpointer import Checkpointer, Every
from kcl.training.stopping import Interrupted, Stop
from kcl.training.stream_run import run_streams
from kcl.training.weight_average import AverageHorizon, WeightAverage, update
from reference_run import TRAINED

IMAGES: dict[str, Any] = {"rotation_labels": True, "test_views": "flip", "augmentation": "flip", "updates_per_batch": 2,
                          "feature_stages": 2}  # fmt: skip
SHARED: dict[str, Any] = {"optimizer": "muon", "muon_lr": 0.02, "weight_average": 0.7}
OWN: dict[str, Any] = {"batch_norm": "coreset", "warm_start": True, "log_variance_bound": 3.0, "soft_targets": 0.5,
                       "test_strength": 0.4, "shared_metric": 0.6}  # fmt: skip
ALONE: list[dict[str, Any]] = [
    {"rotation_labels": True},
    {"optimizer": "muon", "muon_lr": 0.02},
    {"weight_average": 0.7},
    {"batch_norm": "coreset"},
    {"test_views": "flip"},
    {"warm_start": True},
    {"augmentation": "flip"},
    {"augmentation": "flip-shift"},
    {"updates_per_batch": 3},
    {"soft_targets": 0.5},
    {"matched_targets": True, "weight_average": 0.7},
    {"network_loss": "linear", "kernel": "rff"},
    {"network_loss": "linear", "kernel": "linear", "matched_targets": True, "optimizer": "muon"},
    {"network_loss": "linear", "kernel": "linear", "rotation_labels": True},
    {"test_strength": 0.4},
    {"shared_metric": 0.6},
    {"feature_stages": 2},
]


engines = pytest.mark.parametrize("engine", ["plain", "stacked"])


def _with_numbers(runs: Any) -> Any:
    """Every run with rates of its own."""
    for run in range(3):
        settings = runs.settings[run]
        numbers: dict[str, float] = {}
        if settings.optimizer == "muon":
            numbers |= {"muon_lr": settings.muon_lr * (1.0 + 0.5 * run), "muon_lr_decay": 0.9 - 0.2 * run}
        if settings.weight_average:
            numbers |= {"weight_average": settings.weight_average + 0.1 * run, "average_ramp": 9.0 - 4.0 * run}
        if runs.method == "kcl" and settings.soft_targets:
            numbers |= {"soft_targets": settings.soft_targets * (1.0 + run)}
        runs = runs.but(run, **numbers)
    return runs


def _assert_same(runs: Any, difference: Any, tasks: int = 2, tolerance: float = 1e-8) -> None:
    """Weights, averages and scores of stack and reference after every task."""
    separate, stacked = runs.separate(), runs.stacked()
    for index in range(min(tasks, runs.training_count)):
        reports: list[list[Any]] = [[], []]
        for learner, run_reports in zip((separate, stacked), reports, strict=True):
            learner.learn(runs.training_tasks(index), run_reports.append)
        assert len(reports[0]) == 3 * len(reports[1])
        difference.assert_none(separate, stacked, tolerance, range(index + 1))
    for index in range(tasks):
        for one, two in zip(separate.scores(runs.tasks(index)), stacked.scores(runs.tasks(index)), strict=True):
            torch.testing.assert_close(one, two, rtol=1e-5, atol=1e-6)
    assert stacked.memory_use() == separate.memory_use()


@pytest.mark.usefixtures("double")
class TestEqualsTheReference:
    @pytest.mark.parametrize("kernel", KERNELS)
    def test_with_everything_at_once(self, make_runs: Any, difference: Any, kernel: str) -> None:
        runs = make_runs(net="resnet", samples=28, split=True, kernel=kernel, **IMAGES, **SHARED, **OWN)
        _assert_same(_with_numbers(runs), difference)

    @pytest.mark.parametrize("method", [name for name in TRAINED if name != "kcl"])
    def test_every_baseline_with_what_goes_with_it(self, make_runs: Any, difference: Any, method: str) -> None:
        runs = make_runs(method, "resnet", samples=28, tasks=3, split=True, **IMAGES, **SHARED)
        _assert_same(_with_numbers(runs), difference, tasks=3)

    @pytest.mark.parametrize("settings", ALONE, ids=str)
    def test_each_alone(self, make_runs: Any, difference: Any, settings: dict[str, Any]) -> None:
        runs = make_runs(net="resnet", samples=28, split=True, **settings)
        _assert_same(_with_numbers(runs), difference)

    def test_the_classic_fisher_of_pairs(self, make_runs: Any, difference: Any) -> None:
        fisher = {"ewc_fisher": "classic", "ewc_fisher_samples": 7}
        _assert_same(make_runs("ewc", "resnet", samples=28, split=True, rotation_labels=True, **fisher), difference)

    def test_muon_and_average_of_an_mlp(self, make_runs: Any, difference: Any) -> None:
        _assert_same(_with_numbers(make_runs(**SHARED, warm_start=True)), difference)


@engines
@pytest.mark.parametrize("method", ["kcl", "er-reservoir"])
def test_runs_that_were_stopped_go_on_to_the_same_bits(
    make_runs: Any, tmp_path: Path, method: str, engine: str
) -> None:
    """Also between two updates on one batch."""
    settings = IMAGES | SHARED | (OWN if method == "kcl" else {})
    [runs, *_] = make_runs(method, "resnet", samples=28, split=True, epochs=2, **settings).groups(engine)
    expected = run_streams(runs.learner(engine), runs.streams)
    stops = 0
    while True:
        stop = Stop()
        left = [3]

        def watch(_: Any, left: list[int] = left, stop: Stop = stop) -> None:
            left[0] -= 1
            stop.signal = 15 if left[0] == 0 else stop.signal

        try:
            checkpointer = Checkpointer(tmp_path, {}, Every(seconds=1e9, thrifty=False), stop)
            outcomes = run_streams(runs.learner(engine), runs.streams, watch, checkpointer)
            break
        except Interrupted:
            stops += 1
    assert stops > 2
    assert [outcome.fingerprint for outcome in outcomes] == [outcome.fingerprint for outcome in expected]
    assert [outcome.matrix.to_lists() for outcome in outcomes] == [outcome.matrix.to_lists() for outcome in expected]


class TestCompiled:
    @pytest.mark.usefixtures("_draws_without_compiler")
    def test_the_traced_step_is_the_step(
        self, make_runs: Any, difference: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        compile_with = functools.partial(torch.compile, backend="aot_eager", dynamic=False, fullgraph=True)
        monkeypatch.setattr(torch_private, "compile_step", lambda traced, _: compile_with(traced))
        runs = make_runs("naive-sgd", "resnet", samples=26, **IMAGES, **SHARED)
        plain, compiled = runs.stacked(draws_as_compiled=True), runs.stacked(compiled=True)
        for learner in (plain, compiled):
            learner.learn(runs.training_tasks(0), lambda _: None)
        difference.assert_none(plain, compiled, 1e-5, [0])
        torch.testing.assert_close(
            compiled.state.averages[0].saved(), plain.state.averages[0].saved(), rtol=1e-5, atol=1e-5
        )
        assert int(compiled.state.averages[0].updates) == compiled._trainer.steps


class TestUpdatesPerBatch:
    def test_every_sample_of_the_stream_is_drawn_once(self, make_runs: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        """Three updates in a row on the same batch, with other noise; then the next batch."""
        runs = make_runs(samples=35, updates_per_batch=3)[[0]]
        learner = runs.plain()
        seen: list[Tensor] = []
        observe = learner.method.observe

        def noting(model: nn.Module, memory: Any, batch: Any, noise: Any) -> Any:
            seen.append(batch.inputs)
            return observe(model, memory, batch, noise)

        monkeypatch.setattr(learner.method, "observe", noting)
        steps: list[Any] = []
        learner.learn(runs.tasks(0), steps.append)
        batches = seen[::3]
        assert len(seen) == len(steps) == steps[-1].steps == 3 * len(batches)
        assert all(torch.equal(batch, again) for batch, again in zip(batches, seen[1::3], strict=True))
        assert all(torch.equal(batch, again) for batch, again in zip(batches, seen[2::3], strict=True))
        assert len(torch.cat(batches)) == 35 - 12
        assert len(torch.cat(batches).unique(dim=0)) == 35 - 12
        assert len({step.loss for step in steps[:3]}) == 3


class TestWeightAverage:
    HORIZONS: ClassVar[list[AverageHorizon]] = [AverageHorizon(0.5, 9.0), AverageHorizon(0.99, 2.0)]

    @pytest.mark.parametrize("alone", [True, False])
    def test_is_the_exponential_average_with_a_short_past_at_first(self, draw: Any, alone: bool) -> None:
        """Of one run by numbers of the host, of several at once; one that has diverged stays as it was."""
        horizons = [*self.HORIZONS[:1], *([] if alone else [self.HORIZONS[1], self.HORIZONS[0]])]
        runs = len(horizons)
        flat, means, counts = draw.normal(runs, 5), torch.zeros(2 * runs), torch.zeros(runs, dtype=torch.int64)
        owners = [torch.arange(runs).repeat_interleave(2), torch.arange(runs)]
        alive = torch.tensor([[run != 2] for run in range(runs)])
        average, expected, first = WeightAverage(flat, [means, counts], horizons), flat.clone(), flat.clone()
        for step in range(20):
            flat += step
            means.fill_(step)
            counts.fill_(step)
            if alone:
                average.update_alone(flat, [means, counts])
            else:
                update(average.tensors(), flat, [means, counts], alive, owners)
            for run, (decay, ramp) in enumerate(horizons[:2]):
                past = min(decay, (1 + step) / (1 + ramp + step))
                expected[run] = past * expected[run] + (1.0 - past) * flat[run]
            torch.testing.assert_close(average.flat, expected)
        assert 18.0 < float(average.running[0][0]) < 19.0
        assert average.running[1][0] == 19
        assert int(average.updates) == 20
        if not alone:
            assert 12.0 < float(average.running[0][2]) < 14.0
            assert torch.equal(average.flat[2], first[2])
            assert average.running[1].tolist() == [19, 19, 0]

    @engines
    def test_tests_see_the_average_and_training_does_not(self, make_runs: Any, engine: str) -> None:
        """The weights are those of a run without an average; the answers are those of the averaged weights."""
        last, averaged = (make_runs(weight_average=decay).groups(engine)[0] for decay in (0.0, 0.95))
        one, two = last.learner(engine), averaged.learner(engine)
        for learner in (one, two):
            learner.learn(last.tasks(0), lambda _: None)
        for mine, other in zip(one.models, two.models, strict=True):
            assert all(torch.equal(a, b) for a, b in zip(mine.parameters(), other.parameters(), strict=True))
        scores = one.scores(last.tasks(0)), two.scores(averaged.tasks(0))
        assert all((a - b).abs().max() > 1e-3 for a, b in zip(*scores, strict=True))

    def test_a_run_that_diverges_keeps_its_average(self, make_runs: Any) -> None:
        runs = make_runs(feature_norm="none", weight_average=0.9)
        spoiled = runs.but(1, lr=1e30).stacked()
        sound = runs.stacked()
        for learner in (spoiled, sound):
            learner.learn(runs.tasks(0), lambda _: None)
        assert spoiled.diverged == [False, True, False]
        assert spoiled.state.averages[0].flat.isfinite().all()
        for run in (0, 2):
            torch.testing.assert_close(spoiled.state.averages[0].flat[run], sound.state.averages[0].flat[run])


@engines
def test_a_warm_start_takes_over_strength_and_scale_alone(make_runs: Any, engine: str) -> None:
    runs = make_runs(warm_start=True).groups(engine)[0]
    learner = runs.learner(engine)
    learner.learn(runs.tasks(0), lambda _: None)
    ended = [[value.item() for value in model.head()] for model in learner.models]
    method, task = runs.methods()[0], runs.tasks(1)[0]
    for model, (strength, scale, shift) in zip(learner.models, ended, strict=True):
        method.begin_task(model, task, numpy_generator(0, "coreset", 1))
        assert [value.item() for value in model.head()] == [strength, scale, 0.0]
        assert scale != 1.0
        assert shift != 0.0


class TestLogVarianceBound:
    """Log-variances that have run away: exp(±) of them overflows, and the divergence is infinite or not a number."""

    @staticmethod
    def _run(make_runs: Any, kernel: str, bound: float) -> Any:
        runs = make_runs(kernel=kernel, log_variance_bound=bound, tau=0.01, dropout=0.0, lr=1e-4)[[0]]
        learner = runs.plain()
        with torch.no_grad():  # the biases of the last layer: mean and log-variance of the posterior, then of the prior
            biases = learner.models[0].gaussians.biases[2]
            biases[1].fill_(120.0)
            if kernel == "vrf":
                biases[3].fill_(-120.0)
        return runs, learner

    @pytest.mark.parametrize("kernel", ["vrf", "vrf-uninformative"])
    def test_without_it_the_run_diverges_and_with_it_learns(self, make_runs: Any, kernel: str) -> None:
        runs, free = self._run(make_runs, kernel, 0.0)
        free.learn(runs.tasks(0))
        assert free.diverged == [True]
        runs, bound = self._run(make_runs, kernel, 5.0)
        bound.learn(runs.tasks(0))
        assert bound.diverged == [False]
        assert all(torch.isfinite(parameter).all() for parameter in bound.models[0].parameters())
        assert torch.isfinite(bound.scores(runs.tasks(0))[0]).all()

    def test_the_bound_hardly_changes_a_run_whose_log_variances_are_small(self, make_runs: Any) -> None:
        scores = []
        for bound in (0.0, 50.0):
            runs = make_runs(log_variance_bound=bound)[[0]]
            learner = runs.plain()
            learner.learn(runs.tasks(0), lambda _: None)
            scores.append(learner.scores(runs.tasks(0))[0])
        assert 0.0 < (scores[0] - scores[1]).abs().max() < 1e-2


@pytest.mark.parametrize("method", TRAINED)
def test_every_method_learns_pairs_and_answers_with_classes(make_runs: Any, method: str) -> None:
    """Easy images: a vote that read another rotation's scores, or another class's, would be no better than chance."""
    images = {"rotation_labels": True, "test_views": "flip"}
    runs = make_runs(method, "resnet", samples=40, split=True, epochs=20, dropout=0.0, lr=0.05, momentum=0.8, **images)
    learner = runs[[0]].plain()
    for index in range(runs.training_count):
        learner.learn(runs[[0]].training_tasks(index), lambda _: None)
    assert learner.scores(runs[[0]].tasks(1))[0].shape[1] == 2
    assert learner.accuracy(runs[[0]].tasks(1))[0] > 75.0
