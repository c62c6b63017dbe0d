"""The strong recipe: what it gives to whom, and that the command line knows it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from kcl.benchmarks.array_stream import ArrayStream
from kcl.benchmarks.moved_pixels import PermutedDigits
from kcl.benchmarks.registry import BENCHMARKS
from kcl.cli import commands
from kcl.errors import KclError
from kcl.methods.recipes import METHODS, SPLIT, check_backbone, published_settings
from kcl.methods.strong_recipe import recipe_settings, strong_settings
from kcl.models.kernel_learner import KernelContinualLearner
from kcl.nets.resnet import cifar_resnet
from reference_run import TRAINED

MEMORY = ("coreset_size_per_class", "memory_per_class", "recalled_per_step", "epochs", "batch_size", "backbone")
SHAPES = dict.fromkeys(SPLIT, (3, 84, 84))


@pytest.mark.parametrize("method", TRAINED)
@pytest.mark.parametrize("benchmark", BENCHMARKS)
class TestEveryPair:
    def test_is_admitted(self, benchmark: str, method: str) -> None:
        settings = strong_settings(benchmark, method)
        check_backbone(SHAPES.get(benchmark, (1, 28, 28)), settings)
        METHODS[method](settings, 10, 10)

    def test_keeps_memory_passes_and_backbone_of_the_paper(self, benchmark: str, method: str) -> None:
        strong, paper = strong_settings(benchmark, method), published_settings(benchmark, method)
        assert [strong.to_dict().get(name) for name in MEMORY] == [paper.to_dict().get(name) for name in MEMORY]
        assert strong != paper
        assert recipe_settings("paper", benchmark, method) == paper

    def test_every_method_gets_what_goes_with_it(self, benchmark: str, method: str) -> None:
        """A comparison in which only one method has the better optimiser, labels or views would say little."""
        mine, best = strong_settings(benchmark, method), strong_settings(benchmark, "kcl")
        shared = ("rotation_labels", "optimizer", "muon_lr", "muon_lr_decay", "weight_average", "test_views",
                  "updates_per_batch", "augmentation")  # fmt: skip
        assert [getattr(mine, name) for name in shared] == [getattr(best, name) for name in shared]


@pytest.mark.parametrize("benchmark", BENCHMARKS)
class TestLight:
    def test_trains_the_network_of_kcl_by_a_linear_output(self, benchmark: str) -> None:
        light = recipe_settings("light", benchmark, "kcl")
        METHODS["kcl"](light, 10, 10)
        assert light.network_loss == "linear"
        changed = {
            name
            for name, value in light.to_dict().items()
            if value != strong_settings(benchmark, "kcl").to_dict()[name]
        }
        assert not changed & {*MEMORY, "rotation_labels", "optimizer", "weight_average", "test_views", "augmentation"}

    @pytest.mark.parametrize("method", [name for name in TRAINED if name != "kcl"])
    def test_leaves_other_methods_as_they_are_with_the_strong_one(self, benchmark: str, method: str) -> None:
        assert recipe_settings("light", benchmark, method) == strong_settings(benchmark, method)


def test_a_method_that_does_not_train_keeps_its_settings() -> None:
    for benchmark in BENCHMARKS:
        settings = strong_settings(benchmark, "streaming-ridge")
        assert settings == published_settings(benchmark, "streaming-ridge")
        METHODS["streaming-ridge"](settings, 10, 10)


def test_an_unknown_recipe_names_the_nearest() -> None:
    with pytest.raises(KclError, match="strong"):
        recipe_settings("stron", "split-cifar100", "kcl")


class TestCommandLine:
    def test_shows_the_settings_of_the_recipe_with_changes(self, capsys: pytest.CaptureFixture[str]) -> None:
        given = ["run", "split-cifar100", "--recipe", "strong", "--set", "muon_lr=0.01", "warm_start=True"]
        assert commands.main([*given, "--show-settings"]) == 0
        shown = dict(line.split(None, 1) for line in capsys.readouterr().out.splitlines())
        found = {name: shown[name].split()[0] for name in ("rotation_labels", "optimizer", "muon_lr", "warm_start")}
        assert found == {"rotation_labels": "True", "optimizer": "muon", "muon_lr": "0.01", "warm_start": "True"}

    @pytest.mark.parametrize(
        ("given", "told"),
        [
            (["permuted-digits", "--recipe", "stronger"], "invalid choice: 'stronger'"),
            (["permuted-digits", "--set", "rotation_labels=true"], "a backbone that sees images"),
            (["permuted-digits", "--set", "rotation_labels=perhaps"], "expected true or false"),
            (["permuted-digits", "--method", "ewc", "--set", "warm_start=true"], "ewc has no setting 'warm_start'"),
            (["permuted-digits", "--method", "ewc", "--set", "batch_norm=coreset"], "ewc has no setting 'batch_norm'"),
            (["permuted-digits", "--set", "weight_average=1"], "weight_average: 1.0 is out of range"),
            (["permuted-digits", "--set", "feature_stages=2"], "feature_stages=2 needs a backbone whose stages give"),
        ],
    )
    def test_refuses_in_one_line(
        self, capsys: pytest.CaptureFixture[str], tmp_path: Path, given: list[str], told: str
    ) -> None:
        out = tmp_path / "out"
        try:
            code = commands.main(["run", *given, "--out", str(out)])
        except SystemExit as stop:
            code = stop.code
        error = capsys.readouterr().err
        assert code not in (0, None)
        assert told in error
        assert error.count("\n") == 1
        assert not (out / "results.jsonl").exists()

    def test_runs_the_recipe(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        out: Any = tmp_path / "out"
        given = ["run", "permuted-digits", "--recipe", "strong", "--tasks", "2", "--train-per-task", "300"]
        assert commands.main([*given, "--device", "cpu", "--out", str(out)]) == 0
        assert "permuted-digits" in capsys.readouterr().out

    def test_lists_the_recipes(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert commands.main(["list", "recipes"]) == 0
        assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == ["paper", "strong", "light"]


class TestLearner:
    def test_takes_the_recipe_of_its_stream(self) -> None:
        stream = PermutedDigits(tasks=2)
        learner = KernelContinualLearner(stream, recipe="strong", weight_average=0.5)
        assert learner.settings == strong_settings("permuted-digits", "kcl").replace(weight_average=0.5)
        assert KernelContinualLearner(stream).settings == published_settings("permuted-digits", "kcl")

    def test_goes_without_what_a_module_of_the_users_cannot_do(self) -> None:
        class Images(ArrayStream):
            recipe = "split-cifar100"

        stream = Images([(torch.zeros(60, 3, 8, 8), torch.arange(60) % 2)])
        with torch.random.fork_rng():
            module = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.ReLU(), torch.nn.Flatten())
            nets = cifar_resnet(0.0), cifar_resnet(0.0, 3)
        small = {"coreset_size_per_class": 5}
        own = strong_settings("split-cifar100", "kcl").replace(**small)
        assert (own.feature_stages, own.batch_norm) == (3, "coreset")
        learner = KernelContinualLearner(stream, recipe="strong", backbone=module, **small)
        assert learner.settings == own.replace(feature_stages=1, batch_norm="running")
        learner.learn(stream[0])
        one, three = (KernelContinualLearner(stream, recipe="strong", backbone=net, **small).settings for net in nets)
        assert (one, three) == (own.replace(feature_stages=1), own)
        module.parts, module.gathers = 4, True  # names of the module's own, which mean nothing here
        assert KernelContinualLearner(stream, backbone=module, **small).settings.feature_stages == 1
        again = KernelContinualLearner(stream, recipe="strong", backbone=module, **small)
        assert again.settings == learner.settings
        with pytest.raises(KclError, match="feature_stages=3 needs a backbone"):
            KernelContinualLearner(stream, recipe="strong", backbone=module, feature_stages=3, **small)

    def test_refuses_one_for_a_stream_of_the_users_own(self) -> None:
        stream = ArrayStream([(torch.zeros(40, 3), torch.arange(40) % 2)])
        with pytest.raises(KclError, match="no recipe 'strong' for a stream of your own"):
            KernelContinualLearner(stream, recipe="strong")
