"""Experiments: which runs are trained together, what is written of them, and that company changes nothing."""

from __future__ import annotations

import dataclasses
import itertools
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from kcl.benchmarks.moved_pixels import PermutedPixels
from kcl.benchmarks.registry import BENCHMARKS, Benchmark
from kcl.benchmarks.task import Task
from kcl.core.devices import Compute
from kcl.errors import KclError
from kcl.experiments import admission, group_training, resuming
from kcl.experiments.admission import admit, build_learner, step_count
from kcl.experiments.group_training import Experiment, fitting_trainings, group_trainings, remaining_groups, train_group
from kcl.experiments.resuming import RunOptions
from kcl.experiments.run_folder import Folder
from kcl.experiments.run_spec import RunGroup, RunSpec, by_training
from kcl.methods.kcl_settings import KclSettings
from kcl.methods.recipes import METHODS, methods_with, select_settings
from kcl.report import results_table
from kcl.training.checkpointer import Every
from kcl.training.stack import RunStack
from kcl.training.stream_run import Progress
from like_gpu import LikeGpu

SMALL = KclSettings(bases=16, width=8, coreset_size_per_class=4, batch_size=10, dropout=0.2)
CPU, NEVER = Compute(), RunOptions()
METRICS = ("average_accuracy", "forgetting", "learning_accuracy", "backward_transfer", "forward_transfer")


@pytest.fixture(autouse=True)
def _made_up_benchmark(make_dataset: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    dataset = make_dataset(60)
    monkeypatch.setitem(BENCHMARKS, "made-up", Benchmark("for tests", lambda *_: dataset, PermutedPixels, 20))
    monkeypatch.setitem(BENCHMARKS, "another", Benchmark("for tests", lambda *_: dataset, PermutedPixels, 20))


def _specs(seeds: Sequence[int] = (0, 1, 2), method: str = "kcl", tasks: int = 2, **options: Any) -> list[RunSpec]:
    train = options.pop("train_per_task", None)
    settings = select_settings(method, SMALL.to_dict()).replace(**options)
    return [RunSpec("made-up", method, seed, settings, tasks, train) for seed in seeds]


def _all_fields() -> dict[str, Any]:
    """Every setting of every method."""
    types = [method.settings_type for method in METHODS.values()]
    return {name: settings_type.field(name) for settings_type in types for name in settings_type.names()}


def _execute(
    path: Path, specs: list[RunSpec], compute: Compute = CPU, options: RunOptions = NEVER, resume: bool = False
) -> tuple[list[dict[str, Any]], list[str], list[str]]:
    """The records in the order written, the messages, and the labels of the groups."""
    said: list[str] = []
    watched: list[str] = []

    def watch(group: RunGroup) -> Callable[[Progress], None]:
        watched.append(experiment.plan.group_label(group.specs))
        return lambda _: None

    experiment = Experiment(
        admit(specs, compute), Folder(path, resume), options._replace(command="a command"), said.append
    )
    for group in remaining_groups(experiment):
        train_group(experiment, group, watch)
    return [json.loads(line) for line in (path / "results.jsonl").read_text().splitlines()], said, watched


def _lasting(record: dict[str, Any]) -> dict[str, Any]:
    """A record without how long it took, in what company, and the last bits of its weights."""
    passing = ("runs_at_once", "fingerprint")
    return {name: value for name, value in record.items() if "seconds" not in name and name not in passing}


class TestGroups:
    """Grouping is pure bookkeeping, so it can be tested for a GPU that is not here."""

    fitting = 1000
    """Trainings that fit in the memory of the GPU."""

    @pytest.fixture(autouse=True)
    def _memory(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(group_training, "fitting_trainings", lambda _, trainings: min(len(trainings), self.fitting))

    def _groups(
        self, specs: list[RunSpec], runs_at_once: int | None = None, device: str = "cuda"
    ) -> list[list[RunSpec]]:
        plan = admit(specs, Compute(device, runs_at_once=runs_at_once))
        groups = [group.specs for group in group_trainings(plan, by_training(specs))]
        assert sorted(spec.key for group in groups for spec in group) == sorted(spec.key for spec in specs)
        for group in groups:  # in the order asked for
            firsts = [specs.index(specs_of_one[0]) for specs_of_one in by_training(group)]
            assert firsts == sorted(firsts)
        return groups

    def test_runs_that_differ_in_numbers_only_are_together(self) -> None:
        numbers = {
            "lr": (0.1, 0.3), "momentum": (0.0, 0.8), "tau": (0.0, 0.1), "dropout": (0.1, 0.5),
            "ridge_strength": (0.1, 1.0), "rbf_gamma": (0.5, 1.0), "laplacian_gamma": (0.2, 0.3),
            "lr_decay": (0.5, 1.0), "lr_floor": (0.0, 1e-3),
            "muon_lr": (0.005, 0.01), "muon_lr_decay": (0.8, 1.0), "soft_targets": (0.5, 1.0),
        }  # fmt: skip
        of_ewc = {"ewc_strength": (1.0, 10.0), "ewc_decay": (0.5, 0.9)}
        stackable = {name for name, field in _all_fields().items() if field.metadata["stackable"]}
        assert {*numbers, *of_ewc} == stackable - {"weight_average", "average_ramp"}  # which act at test only
        for method, values_of, base in (("kcl", numbers, {"soft_targets": 0.25}), ("ewc", of_ewc, {})):
            each = [{name: value} for name, values in values_of.items() for value in values]
            specs = [spec for changes in each for spec in _specs(method=method, **(base | changes))]
            specs = list(dict.fromkeys(specs))
            assert self._groups(specs) == [specs]

    @pytest.mark.parametrize(
        "options",
        [
            {"kernel": "rbf"}, {"coreset_size_per_class": 5}, {"bases": 17}, {"monte_carlo_samples": 2},
            {"polynomial_degree": 2}, {"feature_norm": "none"}, {"width": 9}, {"layers": 1},
            {"batch_size": 11}, {"epochs": 2}, {"dropout": 0.0}, {"method": "naive-sgd"}, {"tasks": 3},
            {"train_per_task": 50}, {"memory_per_class": 2}, {"recalled_per_step": 5}, {"ewc_fisher": "classic"},
            {"ewc_fisher_samples": 10}, {"ewc_window": 5}, {"optimizer": "muon"},
            {"updates_per_batch": 2}, {"warm_start": True}, {"log_variance_bound": 3.0},
            {"soft_targets": 0.5}, {"matched_targets": True},
        ],
        ids=str,
    )  # fmt: skip
    def test_other_differences_keep_runs_apart(self, options: dict[str, Any]) -> None:
        method = next(iter(methods_with(next(iter(options)))), "kcl")
        one, two = _specs(method=method), _specs(**{"method": method} | options)
        mixed = [spec for pair in zip(one, two, strict=True) for spec in pair]
        assert self._groups(mixed) == [one, two]

    @pytest.mark.parametrize(
        "options",
        [{"weight_average": 0.9}, {"test_draws": 2}, {"test_strength": 0.5}, {"average_ramp": 2.0},
         {"shared_metric": 0.5}],
        ids=str,
    )  # fmt: skip
    def test_runs_that_share_a_training_are_together_and_count_as_one(self, options: dict[str, Any]) -> None:
        one, two = _specs(), _specs(**options)
        expected = [spec for pair in zip(one, two, strict=True) for spec in pair]
        assert self._groups(one + two) == [expected]
        assert self._groups(one + two, runs_at_once=2) == [expected[:4], expected[4:]]
        assert self._groups(one + two, device="cpu") == [expected[:2], expected[2:4], expected[4:]]

    def test_every_setting_is_a_number_that_stacks_or_keeps_apart(self) -> None:
        fixed = {"kernel", "coreset_size_per_class", "bases", "monte_carlo_samples", "test_draws", "polynomial_degree",
                 "feature_norm", "backbone", "feature_stages", "width", "layers", "batch_size", "epochs",
                 "memory_per_class", "recalled_per_step", "optimizer", "updates_per_batch", "augmentation",
                 "rotation_labels", "batch_norm", "test_views", "warm_start", "matched_targets", "log_variance_bound",
                 "network_loss", "test_strength",
                 "shared_metric", "scenario", "class_head", "class_features", "class_bases", "softmax",
                 "logits_weight", "labels_weight",
                 "features", "kernel_width", "strength_rule",
                 "ewc_fisher", "ewc_fisher_samples", "ewc_window"}  # fmt: skip
        assert {name for name, field in _all_fields().items() if not field.metadata["stackable"]} == fixed

    def test_other_benchmarks_are_apart(self) -> None:
        one = _specs()
        two = [dataclasses.replace(spec, benchmark="another") for spec in one]
        assert self._groups(one + two) == [one, two]

    @pytest.mark.parametrize(
        ("at_once", "sizes"), [(1, [1] * 7), (2, [2, 2, 2, 1]), (3, [3, 3, 1]), (7, [7]), (50, [7])]
    )
    def test_runs_at_once_caps_them(self, at_once: int, sizes: list[int]) -> None:
        groups = self._groups(_specs(range(7)), runs_at_once=at_once)
        assert [len(group) for group in groups] == sizes

    def test_otherwise_as_many_as_fit(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(TestGroups, "fitting", 4)
        assert [len(group) for group in self._groups(_specs(range(7)))] == [4, 3]
        assert [len(group) for group in self._groups(_specs(range(7)), runs_at_once=6)] == [6, 1]

    def test_what_fits_counts_a_step_and_a_classifier(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """A step of one run takes 30 of 1,000; its classifier 30 more, beside 10 that are there anyway."""
        rehearsed: list[str] = []
        for name in ("rehearse", "rehearse_classifier"):
            whole = getattr(RunStack, name)
            monkeypatch.setattr(
                RunStack,
                name,
                lambda learner, tasks, name=name, whole=whole: [rehearsed.append(name), whole(learner, tasks)],
            )
        peaks = {"rehearse": 30, "rehearse_classifier": 40}
        monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", lambda _: None)
        monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda _: peaks[rehearsed[-1]])
        monkeypatch.setattr(torch.cuda, "memory_allocated", lambda _: 10)
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (1000, 1000))
        specs = _specs(range(50))
        assert fitting_trainings(admit(specs, Compute()), by_training(specs)) == 700 // 60
        specs = _specs(range(50), "naive-sgd")
        assert fitting_trainings(admit(specs, Compute()), by_training(specs)) == 700 // 30
        assert rehearsed == ["rehearse", "rehearse_classifier", "rehearse"]

    def test_what_fits_counts_trainings_in_every_way_they_are_tested(self, monkeypatch: pytest.MonkeyPatch) -> None:
        tested: list[list[Any]] = []
        rehearse = RunStack.rehearse_classifier

        def noting(self: RunStack, tasks: Sequence[Any]) -> None:
            tested.append([method.settings for method in self.variants[0]])
            assert self.count == 1
            rehearse(self, tasks)

        monkeypatch.setattr(RunStack, "rehearse_classifier", noting)
        for name in ("reset_peak_memory_stats", "max_memory_allocated", "memory_allocated"):
            monkeypatch.setattr(torch.cuda, name, lambda _: 10)
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (1000, 1000))
        specs = [*_specs(range(50)), *_specs(range(30), weight_average=0.9), *_specs((49,), test_draws=3)]
        specs += _specs((0,), weight_average=0.5)
        assert fitting_trainings(admit(specs, Compute()), by_training(specs)) == 50
        ways = [{}, {"weight_average": 0.9}, {"weight_average": 0.5}, {"test_draws": 3}]
        assert tested == [[SMALL.replace(**changes) for changes in ways]]

    def test_updates_are_steps(self) -> None:
        sizes = admit(_specs((0,)), Compute()).task_sizes[_specs((0,))[0].key]
        samples = sum(size.train for size in sizes)
        assert [step_count(SMALL.replace(updates_per_batch=count), samples) for count in (1, 3)] == [12, 36]

    @pytest.mark.parametrize("at_once", [None, 3])
    def test_on_a_cpu_each_is_alone(self, at_once: int | None) -> None:
        specs = _specs(range(4))
        assert self._groups(specs, at_once, "cpu") == [[spec] for spec in specs]

    def test_no_runs_make_no_groups(self) -> None:
        assert self._groups([]) == []


class TestLearnerChosen:
    def test_on_a_cpu_a_run_is_plain(self) -> None:
        plan = admit(_specs(), Compute())
        for spec, group in zip(plan.specs, group_trainings(plan, by_training(plan.specs)), strict=True):
            assert group.plain
            learner = build_learner(group.trainings, [plan.stream(spec)], plan.compute, group.plain)
            assert learner.plain
            assert learner.seeds == [spec.seed]

    @pytest.mark.parametrize(
        ("setting", "long", "compiled"), [(None, 10, True), (None, 11, False), (True, 11, True), (False, 10, False)]
    )
    def test_long_runs_are_compiled(
        self, monkeypatch: pytest.MonkeyPatch, setting: bool | None, long: int, compiled: bool
    ) -> None:
        """Two tasks of 60 samples in batches of ten are about twelve steps, less what goes into the coreset."""
        monkeypatch.setattr(admission, "LONG", long)
        specs = _specs(tasks=2, train_per_task=50)
        plan = admit(specs, LikeGpu(compiled=setting, precision="float32"))
        streams = [plan.stream(spec) for spec in specs]
        learner = build_learner(by_training(specs), streams, plan.compute, plain=False)
        assert not learner.plain
        assert learner.compiled is compiled
        assert learner.precision == "float32"


@pytest.mark.parametrize("method", ["kcl", "naive-sgd"])
def test_results_are_bit_equal_whatever_runs_are_beside(tmp_path: Path, method: str) -> None:
    """The path of the command line on a CPU: `--runs-at-once` has no effect, and other runs have none either."""
    specs = [
        dataclasses.replace(spec, settings=spec.settings.replace(lr=lr))
        for spec, lr in itertools.product(_specs((0, 1), method, epochs=3, momentum=0.5), (0.5, 0.2))
    ]
    alone, _, watched = _execute(tmp_path / "alone", specs)
    assert watched == [f"{spec.label} lr={spec.settings.lr}" for spec in specs]
    together, said, _ = _execute(tmp_path / "3", specs, Compute(runs_at_once=3))
    assert [record["runs_at_once"] for record in (*alone, *together)] == [1] * 8
    assert said == []
    assert [_lasting(record) for record in together] == [_lasting(record) for record in alone]
    [quite_alone], _, _ = _execute(tmp_path / "one", specs[2:3])
    assert _lasting(quite_alone) == _lasting(alone[2])
    assert len({json.dumps(record["accuracy_matrix"]) for record in alone}) == 4  # or the agreement would say little


@pytest.mark.usefixtures("double")
@pytest.mark.parametrize(("method", "rates"), [("kcl", (0.1, 0.05, 0.02)), ("naive-sgd", (0.3, 0.2, 0.1))])
def test_stacked_runs_write_the_same_results(tmp_path: Path, method: str, rates: Sequence[float]) -> None:
    specs = [
        dataclasses.replace(spec, settings=spec.settings.replace(lr=lr, dropout=dropout))
        for spec, lr, dropout in zip(_specs((4, 5, 6), method, epochs=3), rates, (0.1, 0.2, 0.5), strict=True)
    ]
    expected, _, _ = _execute(tmp_path / "separate", specs)
    records, said, watched = _execute(tmp_path / "stacked", specs, LikeGpu(runs_at_once=3))
    assert [_lasting(record) for record in records] == [_lasting(record) for record in expected]
    assert [record["runs_at_once"] for record in records] == [3] * 3
    assert (said, watched) == ([], [f"{method}, 3 runs"])
    assert len({json.dumps(record["accuracy_matrix"]) for record in records}) == 3


@pytest.fixture
def crowded(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """A GPU whose memory holds only `room` trainings, whatever was estimated; `late`: it shows in the second task."""
    limits: dict[str, Any] = {"room": 2, "late": False}

    def build(trainings: Sequence[Any], *others: Any) -> Learner:
        learner = build_learner(trainings, *others)
        if len(trainings) <= limits["room"]:
            return learner
        if not limits["late"]:
            raise torch.OutOfMemoryError("no room")
        learn = learner.learn

        def limited(tasks: Sequence[Task], *arguments: Any, **named: Any) -> None:
            if tasks[0].index > 0:
                raise torch.OutOfMemoryError("no room")
            learn(tasks, *arguments, **named)

        learner.learn = limited  # type: ignore[method-assign]
        return learner

    monkeypatch.setattr(group_training, "build_learner", build)
    return limits


class TestRunsThatDoNotFit:
    def test_are_done_in_halves_and_it_is_said(self, tmp_path: Path, crowded: dict[str, Any]) -> None:
        specs = _specs(range(5))
        expected, _, _ = _execute(tmp_path / "separate", specs)
        records, said, watched = _execute(tmp_path / "stacked", specs, LikeGpu(runs_at_once=5))
        assert [_lasting(record) for record in records] == [_lasting(record) for record in expected]
        assert [record["runs_at_once"] for record in records] == [2, 2, 1, 2, 2]
        assert watched == [*(f"kcl, {count} runs" for count in (5, 3, 2)), specs[2].label, "kcl, 2 runs"]
        assert [sentence.partition(" do not fit")[0] for sentence in said] == ["kcl, 5 runs", "kcl, 3 runs"]
        assert not (tmp_path / "stacked" / "checkpoints").exists()

    def test_a_single_training_fails(self, tmp_path: Path, crowded: dict[str, Any]) -> None:
        crowded["room"] = 0
        with pytest.raises(torch.OutOfMemoryError):
            _execute(tmp_path / "stacked", _specs(range(3)), LikeGpu(runs_at_once=3))

    def test_what_has_got_as_far_as_a_checkpoint_is_not_thrown_away(
        self, tmp_path: Path, crowded: dict[str, Any]
    ) -> None:
        crowded["late"] = True
        specs, compute = _specs(range(3), tasks=2), LikeGpu(runs_at_once=3)
        with pytest.raises(torch.OutOfMemoryError):
            _execute(tmp_path, specs, compute, RunOptions(Every(steps=1)))
        crowded["room"] = 3
        records, _, _ = _execute(tmp_path, specs, compute, resume=True)
        assert [(record["runs_at_once"], record["resumed"]) for record in records] == [(3, 1)] * 3


class TestRunsThatDoNotStack:
    def _uneven(self) -> list[RunSpec]:
        """Few samples per task: seeds differ in how many of each class they draw, so their coresets do."""
        return _specs(range(3), train_per_task=15, tasks=2)

    def test_are_done_one_after_another_and_it_is_said(self, tmp_path: Path) -> None:
        specs = self._uneven()
        expected, _, _ = _execute(tmp_path / "separate", specs)
        records, said, watched = _execute(tmp_path / "stacked", specs, LikeGpu(runs_at_once=3))
        assert [_lasting(record) for record in records] == [_lasting(record) for record in expected]
        assert [record["runs_at_once"] for record in records] == [1] * 3
        [sentence] = said
        assert "memories of different shapes" in sentence
        assert "3 runs one after another" in sentence
        assert watched == ["kcl, 3 runs", *(spec.label for spec in specs)]

    def test_in_a_later_task_are_begun_anew(self, tmp_path: Path) -> None:
        """The first task stacks, the second does not: what was learned stacked is thrown away."""
        size = SMALL.coreset_size_per_class

        def smallest(seed: int, task: int) -> int:
            stream = PermutedPixels(BENCHMARKS["made-up"].load(None, print), 2, seed, 15)
            return int(stream[task].train.labels.bincount(minlength=3).min())

        rich = [seed for seed in range(40) if smallest(seed, 0) >= size]
        seeds = [next(seed for seed in rich if smallest(seed, 1) >= size)]
        seeds.append(next(seed for seed in rich if smallest(seed, 1) < size))
        specs = _specs(seeds, train_per_task=15, tasks=2)
        expected, _, _ = _execute(tmp_path / "separate", specs)
        records, said, _ = _execute(tmp_path / "stacked", specs, LikeGpu(runs_at_once=2))
        assert len(said) == 1
        assert [_lasting(record) for record in records] == [_lasting(record) for record in expected]

    def test_leave_other_groups_stacked(self, tmp_path: Path) -> None:
        specs = self._uneven() + _specs(range(2), kernel="rbf")
        records, said, _ = _execute(tmp_path, specs, LikeGpu(runs_at_once=3))
        assert len(said) == 1
        assert [record["runs_at_once"] for record in records] == [1, 1, 1, 2, 2]


UNNORMALISED: dict[str, dict[str, Any]] = {"kcl": {"feature_norm": "none"}}
"""Features of length one would keep a loss finite."""


@pytest.mark.parametrize("compute", [Compute(), LikeGpu(runs_at_once=1), LikeGpu(runs_at_once=3)], ids=str)
@pytest.mark.parametrize("method", ["kcl", "naive-sgd"])
class TestDivergence:
    def test_is_recorded_without_numbers_and_counted(self, tmp_path: Path, compute: Compute, method: str) -> None:
        specs = _specs(method=method, tasks=3, **UNNORMALISED.get(method, {}))
        specs[1] = dataclasses.replace(specs[1], settings=specs[1].settings.replace(lr=1e30))
        expected, _, _ = _execute(tmp_path / "sound", specs[::2])
        records, said, _ = _execute(tmp_path / "all", specs, compute)
        assert [record["diverged"] for record in records] == [False, True, False]
        assert [records[1][name] for name in METRICS] == [None] * len(METRICS)
        assert records[1]["accuracy_matrix"] == [[None] * 3] * 3
        assert [specs[1].label in message for message in said] == [True]
        if compute.on_cpu:
            assert [_lasting(record) for record in records[::2]] == [_lasting(record) for record in expected]
        table = results_table.text([{**record, "settings": SMALL.to_dict()} for record in records])
        assert "2 (+1 diverged)" in table

    def test_of_all_runs_is_recorded_too(self, tmp_path: Path, compute: Compute, method: str) -> None:
        specs = _specs((0, 1), method, tasks=3, lr=1e30, lr_floor=1e30, **UNNORMALISED.get(method, {}))
        records, _, _ = _execute(tmp_path, specs, compute)
        assert [record["diverged"] for record in records] == [True, True]
        assert "0 (+2 diverged)" in results_table.text(records)


def test_several_trainings_in_one_checkpoint_without_stacking_are_refused(tmp_path: Path) -> None:
    """Older versions saved them with --runs-at-once on a CPU."""
    specs = _specs()
    unfinished = resuming.UnfinishedGroup(tmp_path, [spec.fields() for spec in specs], {}, "", plain=True)
    with pytest.raises(KclError, match="3 trainings"):
        group_training.resumed_group(unfinished, specs)
    assert group_training.resumed_group(unfinished, specs[:1]).plain
