"""Runs that differ in how they are tested only: trained once, and each what it is alone, to the bit."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from kcl.benchmarks.moved_pixels import PermutedPixels
from kcl.benchmarks.registry import BENCHMARKS, Benchmark
from kcl.core.devices import Compute
from kcl.core.settings import Settings
from kcl.experiments.admission import admit
from kcl.experiments.group_training import Experiment, remaining_groups, train_group
from kcl.experiments.resuming import RunOptions
from kcl.experiments.run_folder import Folder
from kcl.experiments.run_spec import RunGroup, RunSpec
from kcl.methods.kcl_settings import KclSettings
from kcl.methods.method import Method
from kcl.methods.recipes import METHODS, published_backbone
from kcl.training.checkpoint import digest
from kcl.training.checkpointer import Checkpointer, Every
from kcl.training.stack import RunStack
from kcl.training.stopping import Interrupted, Stop
from kcl.training.stream_run import Outcome, run_streams
from like_gpu import LikeGpu
from one_run import OneRun
from reference_run import TRAINED

ENGINES = ("plain", "stacked")
AVERAGE, VIEWS, NORM, DRAWS, STRENGTH = (
    {"weight_average": 0.12},
    {"test_views": "flip"},
    {"batch_norm": "coreset"},
    {"test_draws": 3},
    {"test_strength": 0.3},
)
METRIC = {"shared_metric": 0.6}
# Of few updates an average reaches back to a ninth: only these short ones differ.
OF_KCL: list[dict[str, Any]] = [
    {}, AVERAGE, VIEWS, NORM, DRAWS, STRENGTH, METRIC, {"weight_average": 0.22},
    {"weight_average": 0.9, "average_ramp": 2.0}, {"weight_average": 0.9, "average_ramp": 1.0},
    {**AVERAGE, **VIEWS, **NORM, **DRAWS, **STRENGTH, **METRIC},
]  # fmt: skip
OF_ALL: list[dict[str, Any]] = [{}, {**AVERAGE, **VIEWS}]

# Of every setting: which method on which net shows what it does, beside which others, and another value of it.
OTHER_VALUES: dict[str, tuple[str, str, dict[str, Any], Any]] = {
    "kernel": ("kcl", "mlp", {}, "linear"),
    "coreset_size_per_class": ("kcl", "mlp", {}, 5),
    "bases": ("kcl", "mlp", {}, 33),
    "tau": ("kcl", "mlp", {}, 0.5),
    "monte_carlo_samples": ("kcl", "mlp", {}, 2),
    "test_draws": ("kcl", "resnet", {}, 3),
    "ridge_strength": ("kcl", "mlp", {}, 0.7),
    "rbf_gamma": ("kcl", "mlp", {"kernel": "rbf"}, 0.9),
    "laplacian_gamma": ("kcl", "mlp", {"kernel": "laplacian"}, 0.9),
    "polynomial_degree": ("kcl", "mlp", {"kernel": "polynomial"}, 2),
    "feature_norm": ("kcl", "mlp", {}, "none"),
    "backbone": ("kcl", "mlp", {}, "identity"),
    "feature_stages": ("kcl", "resnet", {}, 2),
    "width": ("kcl", "mlp", {}, 17),
    "layers": ("kcl", "mlp", {}, 1),
    "dropout": ("kcl", "mlp", {}, 0.3),
    "batch_size": ("kcl", "mlp", {}, 7),
    "epochs": ("kcl", "mlp", {}, 2),
    "lr": ("kcl", "mlp", {}, 0.07),
    "lr_decay": ("kcl", "mlp", {}, 0.5),
    "lr_floor": ("kcl", "mlp", {}, 0.3),
    "momentum": ("kcl", "mlp", {}, 0.2),
    "optimizer": ("kcl", "mlp", {}, "muon"),
    "muon_lr": ("kcl", "mlp", {"optimizer": "muon"}, 0.02),
    "muon_lr_decay": ("kcl", "mlp", {"optimizer": "muon"}, 0.5),
    "updates_per_batch": ("kcl", "mlp", {}, 2),
    "augmentation": ("kcl", "resnet", {}, "flip"),
    "rotation_labels": ("kcl", "resnet", {}, True),
    "weight_average": ("kcl", "resnet", {}, 0.12),
    "average_ramp": ("kcl", "resnet", {"weight_average": 0.9}, 2.0),
    "batch_norm": ("kcl", "resnet", {}, "coreset"),
    "test_views": ("kcl", "resnet", {}, "flip"),
    "test_strength": ("kcl", "resnet", {}, 0.3),
    "shared_metric": ("kcl", "resnet", {}, 0.6),
    "soft_targets": ("kcl", "mlp", {}, 0.5),
    "matched_targets": ("kcl", "mlp", {}, True),
    "network_loss": ("kcl", "mlp", {"kernel": "rff"}, "linear"),
    "warm_start": ("kcl", "mlp", {}, True),
    "log_variance_bound": ("kcl", "mlp", {}, 0.5),
    "scenario": ("kcl", "resnet", {}, "class"),
    "class_head": ("kcl", "resnet", {"scenario": "class"}, "class-means"),
    "class_features": ("kcl", "resnet", {"scenario": "class"}, "linear"),
    "class_bases": ("kcl", "resnet", {"scenario": "class"}, 33),
    "kernel_width": ("streaming-ridge", "mlp", {}, 0.5),
    "features": ("streaming-ridge", "mlp", {}, "relu"),
    "strength_rule": ("streaming-ridge", "mlp", {}, "gcv"),
    "softmax": ("naive-sgd", "resnet", {}, "all"),
    "logits_weight": ("der++", "mlp", {"memory_per_class": 2}, 0.9),
    "labels_weight": ("der++", "mlp", {}, 0.9),
    "memory_per_class": ("er-reservoir", "mlp", {}, 2),
    "recalled_per_step": ("er-reservoir", "mlp", {}, 5),
    "ewc_fisher": ("ewc", "mlp", {}, "classic"),
    "ewc_strength": ("ewc", "mlp", {}, 1.0),
    "ewc_decay": ("ewc", "mlp", {}, 0.5),
    "ewc_window": ("ewc", "mlp", {}, 2),
    "ewc_fisher_samples": ("ewc", "mlp", {"ewc_fisher": "classic"}, 7),
}


def _learned(runs: Any, settings: Settings) -> tuple[str, Any]:
    """A digest of all that a run has after its tasks, but averages; and its scores. It is tested after every task."""
    stream = runs.streams[0]
    method = METHODS[runs.method](settings, len(stream.class_labels), sum(task.ways for task in stream))
    one_run = dataclasses.replace(runs, settings=[settings])
    make = one_run.backbones()[0] if runs.net == "resnet" else lambda: published_backbone(stream.input_shape, settings)
    run = OneRun(method, make, runs.seeds[0])
    for index in range(runs.training_count):
        run.learn(runs.training_tasks(index)[0])
        for other in range(index + 1):
            run.accuracy(stream[other])
    kept = {str(index): kept.memory for index, kept in run.kept.items()}
    tree = {"model": dict(run.model.state_dict()), "kept": kept, "carried": run.method_state or {}}
    return digest(tree), run.scores(stream[0])


class TestSettings:
    def test_every_setting_is_tried(self) -> None:
        """A new one must be given a value here, and then shows itself whether training knows of it."""
        assert set(OTHER_VALUES) == {name for method in METHODS.values() for name in method.settings_type.names()}
        averages, others = {"weight_average", "average_ramp"}, {"batch_norm", "test_views", "test_draws"}
        of_all = {"scenario", "class_head", "class_features", "class_bases"}
        assert set(KclSettings.names_at_test()) == averages | others | of_all | {"test_strength", "shared_metric"}

    @pytest.mark.parametrize("name", OTHER_VALUES)
    def test_training_knows_of_all_but_those_that_act_at_test(self, make_runs: Any, name: str) -> None:
        """Those leave every weight, statistic, λ, scale, shift and sample kept as it is, but not the scores."""
        method, net, beside, value = OTHER_VALUES[name]
        runs = make_runs(method, net, samples=28, split=net == "resnet", **beside)
        one, two = runs.settings[0], runs.settings[0].replace(**{name: value})
        assert getattr(one, name) != value
        (before, scores), (after, other_scores) = _learned(runs, one), _learned(runs, two)
        at_test = name in one.names_at_test()
        assert (before == after) is at_test
        assert (one.as_trained() == two.as_trained()) is at_test
        if at_test:
            assert not torch.equal(scores, other_scores)

    @pytest.mark.parametrize("method", [name for name in TRAINED if name != "kcl"])
    def test_no_method_s_training_knows_of_them(self, make_runs: Any, method: str) -> None:
        runs = make_runs(method, "resnet", samples=28, split=True, ewc_fisher="classic", ewc_fisher_samples=5)
        together = runs.settings[0].replace(**AVERAGE, **VIEWS)
        assert _learned(runs, runs.settings[0])[0] == _learned(runs, together)[0]


def _variants(runs: Any, changes: Sequence[Sequence[dict[str, Any]]]) -> list[list[Method]]:
    return [
        [
            METHODS[runs.method](
                settings.replace(**change), len(stream.class_labels), sum(task.ways for task in stream)
            )
            for change in several
        ]
        for settings, stream, several in zip(runs.settings, runs.streams, changes, strict=True)
    ]


def _sharing(runs: Any, engine: str, changes: Sequence[Sequence[dict[str, Any]]]) -> tuple[RunStack, list[Any]]:
    """Of each training some runs, and a stream for every run."""
    variants = _variants(runs, changes)
    streams = [stream for stream, several in zip(runs.streams, variants, strict=True) for _ in several]
    firsts, plain = [several[0] for several in variants], engine == "plain"
    return RunStack(firsts, runs.backbones(), runs.seeds, "cpu", variants=variants, plain=plain), streams


def _alone(runs: Any, engine: str, changes: dict[str, Any]) -> RunStack:
    settings = [each.replace(**changes) for each in runs.settings]
    learner: RunStack = dataclasses.replace(runs, settings=settings).learner(engine)
    return learner


def _facts(outcome: Outcome) -> Any:
    return (
        outcome.matrix.to_lists(), outcome.initial_accuracy, outcome.diverged, outcome.memory, outcome.fingerprint
    )  # fmt: skip


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(
    ("method", "changes"),
    [("kcl", OF_KCL), ("ewc", OF_ALL), ("a-gem", OF_ALL), ("er-reservoir", OF_ALL), ("multi-task", OF_ALL)],
)
def test_every_run_is_what_it_is_alone(make_runs: Any, engine: str, method: str, changes: Any) -> None:
    runs = make_runs(method, "resnet", samples=28, split=True)[[0, 1]].groups(engine)[0]
    learner, streams = _sharing(runs, engine, [changes] * len(runs.seeds))
    outcomes = run_streams(learner, streams)
    scores = learner.scores([stream[0] for stream in streams])
    assert learner.seeds == [seed for seed in runs.seeds for _ in changes]
    for place, change in enumerate(changes):
        alone = _alone(runs, engine, change)
        expected = run_streams(alone, runs.streams)
        assert [_facts(outcome) for outcome in outcomes[place :: len(changes)]] == [
            _facts(outcome) for outcome in expected
        ]
        for one, two in zip(scores[place :: len(changes)], alone.scores(runs.tasks(0)), strict=True):
            assert torch.equal(one, two)
        assert all(("average_bytes" in outcome.memory) is ("weight_average" in change) for outcome in expected)
    averages = {(change.get("weight_average"), change.get("average_ramp")) for change in changes}
    assert len({outcome.fingerprint for outcome in outcomes}) == len(runs.seeds) * len(averages)


def test_trainings_may_be_tested_each_in_ways_of_its_own(make_runs: Any) -> None:
    """Against all of them tested in every way."""
    runs = make_runs(net="resnet", samples=28, split=True)
    every = [{}, AVERAGE, {"weight_average": 0.22}, VIEWS, {**VIEWS, **AVERAGE}]
    chosen = [[0, 3], [3, 2, 1], [4]]
    outcomes = run_streams(*_sharing(runs, "stacked", [[every[place] for place in some] for some in chosen]))
    all_of_them = run_streams(*_sharing(runs, "stacked", [every] * 3))
    wanted = [5 * training + place for training, some in enumerate(chosen) for place in some]
    assert [_facts(outcome) for outcome in outcomes] == [_facts(all_of_them[place]) for place in wanted]


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("method", ["kcl", "multi-task"])
def test_they_go_on_after_a_stop_as_if_there_had_been_none(
    make_runs: Any, tmp_path: Path, engine: str, method: str
) -> None:
    runs = make_runs(method, "resnet", samples=28, split=True)[[0, 1]].groups(engine)[0]
    changes = [{}, AVERAGE, {**VIEWS, "weight_average": 0.22}]
    ways = [changes] * len(runs.seeds)
    expected = run_streams(*_sharing(runs, engine, ways))
    outcomes: list[Outcome] = []
    stops = 0
    while not outcomes:
        stop, left = Stop(), [2]

        def watch(_: Any, left: list[int] = left, stop: Stop = stop) -> None:
            left[0] -= 1
            stop.signal = 15 if left[0] == 0 else stop.signal

        try:
            checkpointer = Checkpointer(tmp_path, {}, Every(seconds=1e9, thrifty=False), stop)
            outcomes = run_streams(*_sharing(runs, engine, ways), watch, checkpointer)
        except Interrupted:
            stops += 1
    assert stops > 2
    assert [_facts(outcome) for outcome in outcomes] == [_facts(outcome) for outcome in expected]


@pytest.mark.parametrize("engine", ENGINES)
def test_a_training_that_diverges_ends_its_runs_and_no_others(make_runs: Any, engine: str) -> None:
    changes = [{}, AVERAGE, DRAWS]
    sound = make_runs(feature_norm="none")
    outcomes, expected = (
        [
            outcome
            for group in runs.groups(engine)
            for outcome in run_streams(*_sharing(group, engine, [changes] * len(group.seeds)))
        ]
        for runs in (sound.but(1, lr=1e30), sound)
    )
    assert [outcome.diverged for outcome in outcomes] == [False] * 3 + [True] * 3 + [False] * 3
    assert all(outcome.matrix.average_accuracy is None for outcome in outcomes[3:6])
    for run in (0, 1, 2, 6, 7, 8):
        assert outcomes[run].matrix.to_lists() == expected[run].matrix.to_lists()


SMALL = KclSettings(bases=16, width=8, coreset_size_per_class=4, batch_size=10, dropout=0.2)
PASSING = ("seconds", "learning_seconds", "runs_at_once", "training_shared_by", "resumed")
WAYS: list[dict[str, Any]] = [{}, {"weight_average": 0.2}, {"test_draws": 2, "weight_average": 0.2}]


@pytest.mark.parametrize("compute", [Compute(), LikeGpu(runs_at_once=3)], ids=["cpu", "stacked"])
class TestExperiment:
    @pytest.fixture(autouse=True)
    def _made_up_benchmark(self, make_dataset: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
        dataset = make_dataset(60)
        monkeypatch.setitem(BENCHMARKS, "made-up", Benchmark("for tests", lambda *_: dataset, PermutedPixels, 20))

    @pytest.fixture
    def trained(self, monkeypatch: pytest.MonkeyPatch) -> list[int]:
        """The seeds of the tasks that were learned."""
        seeds: list[int] = []
        learn = RunStack.learn

        def counting(self: RunStack, *arguments: Any) -> None:
            seeds.extend(self.training_seeds)
            learn(self, *arguments)

        monkeypatch.setattr(RunStack, "learn", counting)
        return seeds

    @staticmethod
    def _specs(seeds: Sequence[int] = (0, 1), train: int | None = None) -> list[RunSpec]:
        return [
            RunSpec("made-up", "kcl", seed, SMALL.replace(**changes), 2, train) for changes in WAYS for seed in seeds
        ]

    @staticmethod
    def _execute(
        compute: Compute, path: Path, specs: Sequence[RunSpec], stop_after: int | None = None
    ) -> tuple[dict[str, dict[str, Any]], list[str], list[str]]:
        """Records by key, without what passes; what was said; the labels that were watched."""
        said: list[str] = []
        watched: list[str] = []
        stop, left = Stop(), [stop_after]

        def count(_: Any) -> None:
            left[0] = None if left[0] is None else left[0] - 1
            stop.signal = 15 if left[0] == 0 else stop.signal

        def watch(group: RunGroup) -> Callable[[Any], None]:
            watched.append(experiment.plan.group_label(group.specs))
            return count

        folder = Folder(path, resume=True)
        options = RunOptions(Every(seconds=1e9, thrifty=False), stop)
        experiment = Experiment(admit(specs, compute), folder, options._replace(command="a command"), said.append)
        for group in remaining_groups(experiment):
            train_group(experiment, group, watch)
        return dict(folder.finished), said, watched

    @staticmethod
    def _lasting(records: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
        return {key: {k: v for k, v in record.items() if k not in PASSING} for key, record in records.items()}

    def _expected(self, compute: Compute, path: Path, specs: Sequence[RunSpec]) -> dict[str, dict[str, Any]]:
        """Every way of testing in a command of its own."""
        all_records: dict[str, dict[str, Any]] = {}
        for place, changes in enumerate(WAYS):
            some = [spec for spec in specs if spec.settings == SMALL.replace(**changes)]
            records, said, _ = self._execute(compute, path / str(place), some)
            assert said == []
            assert {record["training_shared_by"] for record in records.values()} == {1}
            all_records |= records
        return self._lasting(all_records)

    def test_runs_are_trained_once_and_recorded_each(
        self, compute: Compute, tmp_path: Path, trained: list[int]
    ) -> None:
        specs = self._specs()
        expected = self._expected(compute, tmp_path, specs)
        assert sorted(trained) == [0] * 6 + [1] * 6
        trained.clear()
        records, said, watched = self._execute(compute, tmp_path / "all", specs)
        assert sorted(trained) == [0, 0, 1, 1]
        assert self._lasting(records) == expected
        assert ["6 runs" in message and "2 trainings" in message for message in said] == [True]
        alone = [f"kcl vrf seed {seed} tested in 3 ways" for seed in (0, 1)]
        assert watched == (alone if compute.on_cpu else ["kcl, 6 runs"])
        together = 1 if compute.on_cpu else 2
        assert {(record["runs_at_once"], record["training_shared_by"]) for record in records.values()} == {
            (together, 3)
        }
        for record in records.values():
            assert ("average_bytes" in record["memory"]) is (record["settings"]["weight_average"] > 0.0)
        assert len({json.dumps(record["accuracy_matrix"]) for record in records.values()}) > 2

    def test_one_training_alone_is_told_by_its_seed(self, compute: Compute, tmp_path: Path) -> None:
        _, said, watched = self._execute(compute, tmp_path / "one", self._specs([0]))
        assert ["3 runs" in message and "one training" in message for message in said] == [True]
        assert watched == ["kcl vrf seed 0 tested in 3 ways"]

    def test_of_those_half_finished_the_others_alone_are_tested(
        self, compute: Compute, tmp_path: Path, trained: list[int]
    ) -> None:
        specs = self._specs()
        expected = self._expected(compute, tmp_path, specs)
        self._execute(compute, tmp_path / "all", specs[:3])
        trained.clear()
        records, said, _ = self._execute(compute, tmp_path / "all", specs)
        assert sorted(trained) == [0, 0, 1, 1]
        assert self._lasting(records) == expected
        assert ["3 runs" in message and "2 trainings" in message for message in said] == [True]
        shared = {spec.key: records[spec.key]["training_shared_by"] for spec in specs}
        assert list(shared.values()) == [2, 1, 2, 2, 1, 2]

    @pytest.mark.parametrize("reports", [1, 7])
    def test_those_stopped_go_on(self, compute: Compute, tmp_path: Path, reports: int) -> None:
        specs = self._specs()
        expected = self._expected(compute, tmp_path, specs)
        with pytest.raises(Interrupted):
            self._execute(compute, tmp_path / "all", specs, reports)
        records, _, _ = self._execute(compute, tmp_path / "all", specs)
        assert self._lasting(records) == expected
        assert [records[spec.key]["resumed"] for spec in specs] == ([1, 0] * 3 if compute.on_cpu else [1] * 6)

    def test_those_whose_trainings_do_not_stack_share_them_one_by_one(self, compute: Compute, tmp_path: Path) -> None:
        """Few samples per task: seeds differ in how many of each class they draw, so their coresets do."""
        specs = self._specs((0, 1, 2), train=15)
        expected = self._expected(Compute(), tmp_path, specs)
        records, said, _ = self._execute(compute, tmp_path / "all", specs)
        assert self._lasting(records) == expected
        assert {record["training_shared_by"] for record in records.values()} == {3}
        if not compute.on_cpu:
            assert "9 runs one after another" in said[-1]
            assert {record["runs_at_once"] for record in records.values()} == {1}
