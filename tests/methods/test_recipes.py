"""The published settings, as the paper's appendix and the baseline's authors print them."""

from __future__ import annotations

import re
from typing import Any

import pytest

from kcl.benchmarks.registry import BENCHMARKS
from kcl.errors import KclError
from kcl.methods.kcl_settings import KclSettings
from kcl.methods.recipes import (
    BENCHMARK_RECIPES,
    METHODS,
    SPLIT,
    check_setting,
    find_method,
    published_backbone,
    published_settings,
    select_settings,
    settings_record,
)

PAPER = {
    "batch_size": 10,
    "lr": 0.1,
    "lr_decay": 0.8,
    "lr_floor": 5e-5,
    "momentum": 0.8,
    "dropout": 0.5,
    "coreset_size_per_class": 20,
    "bases": 1024,
    "tau": 0.01,
    "monte_carlo_samples": 1,
    "epochs": 1,
    "width": 256,
    "layers": 2,
    "ridge_strength": 0.1,
    "kernel": "vrf",
    "feature_norm": "l2",
}


# What the appendix prints otherwise for the images.
CIFAR100 = {"lr": 0.3, "lr_decay": 0.95, "dropout": 0.02, "bases": 2048, "backbone": "cifar-resnet"}
MINIIMAGENET = CIFAR100 | {"coreset_size_per_class": 30, "backbone": "miniimagenet-resnet"}


@pytest.mark.parametrize(
    ("benchmark", "otherwise"),
    [("permuted-mnist", {}), ("rotated-mnist", {}), ("split-cifar100", CIFAR100), ("split-miniimagenet", MINIIMAGENET)],
)
def test_kernel_continual_learning_is_as_the_paper_prints_it(benchmark: str, otherwise: dict[str, Any]) -> None:
    settings, printed = published_settings(benchmark, "kcl").to_dict(), PAPER | {"backbone": "mlp"} | otherwise
    assert {name: settings[name] for name in printed} == printed


@pytest.mark.parametrize(
    ("benchmark", "shape", "features"),
    [
        ("permuted-mnist", (1, 28, 28), 256),
        ("split-cifar100", (3, 32, 32), 160),
        ("split-miniimagenet", (3, 84, 84), 512),
        ("split-folder", (3, 84, 84), 512),
    ],
)
def test_every_benchmark_names_its_backbone(seeded: Any, benchmark: str, shape: tuple[int, ...], features: int) -> None:
    with seeded(0):
        assert published_backbone(shape, published_settings(benchmark, "kcl")).features == features


@pytest.mark.parametrize("benchmark", ["permuted-mnist", "rotated-mnist"])
def test_naive_sgd_is_as_its_authors_ran_it(benchmark: str) -> None:
    settings = published_settings(benchmark, "naive-sgd")
    found = settings.lr, settings.lr_decay, settings.dropout, settings.batch_size, settings.momentum, settings.epochs
    assert found == (0.01, 1.0, 0.0, 10, 0.8, 1)
    assert (settings.width, settings.layers) == (256, 2)


STABLE = {
    "permuted-mnist": (0.1, 0.8, 0.25, 64, 0.8),
    "rotated-mnist": (0.1, 0.55, 0.25, 64, 0.8),
}


@pytest.mark.parametrize("benchmark", STABLE)
def test_stable_sgd_is_as_its_author_corrected_it(benchmark: str) -> None:
    settings = published_settings(benchmark, "stable-sgd")
    found = settings.lr, settings.lr_decay, settings.dropout, settings.batch_size, settings.momentum
    assert found == STABLE[benchmark]


@pytest.mark.parametrize("method", ["ewc", "a-gem", "er-reservoir", "multi-task"])
@pytest.mark.parametrize("benchmark", ["permuted-mnist", "rotated-mnist"])
def test_the_other_baselines_are_as_published(benchmark: str, method: str) -> None:
    settings = published_settings(benchmark, method)
    found = settings.lr, settings.lr_decay, settings.dropout, settings.batch_size, settings.momentum, settings.epochs
    assert found == (0.1, 1.0, 0.0, 32 if method == "ewc" else 10, 0.0, 1)
    memory = {"memory_per_class": 1, "recalled_per_step": 10}
    ewc = {"ewc_fisher": "running", "ewc_strength": 10.0, "ewc_decay": 0.9, "ewc_window": 10}
    printed = {"ewc": ewc, "a-gem": memory, "er-reservoir": memory, "multi-task": {}}
    assert printed[method].items() <= settings.to_dict().items()


@pytest.mark.parametrize("benchmark", SPLIT)
def test_split_benchmarks_have_rates_of_their_own(benchmark: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(BENCHMARK_RECIPES, benchmark, {"lr": 0.3, "lr_decay": 0.95, "dropout": 0.02})
    stable = published_settings(benchmark, "stable-sgd")
    assert (stable.lr, stable.lr_decay, stable.dropout, stable.batch_size) == (0.15, 0.85, 0.1, 10)
    for method in ("ewc", "a-gem", "er-reservoir", "multi-task"):
        settings = published_settings(benchmark, method)
        assert (settings.lr, settings.lr_decay, settings.dropout, settings.momentum) == (0.03, 1.0, 0.0, 0.0)
    assert published_settings(benchmark, "ewc").to_dict()["ewc_window"] == 50


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("benchmark", BENCHMARKS)
def test_every_pair_has_settings(benchmark: str, method: str) -> None:
    assert type(published_settings(benchmark, method)) is METHODS[method].settings_type


def test_an_unknown_method_names_the_nearest() -> None:
    with pytest.raises(KclError, match="naive-sgd"):
        find_method("naive-sdg")


def test_the_default_settings_are_those_of_permuted_mnist() -> None:
    assert KclSettings() == published_settings("permuted-mnist", "kcl")


class TestSettingsOfAMethod:
    @pytest.mark.parametrize("method", METHODS)
    def test_those_of_others_are_refused_by_name(self, method: str) -> None:
        names = METHODS[method].settings_type.names()
        others = {name: kind for kind in METHODS.values() for name in kind.settings_type.names() if name not in names}
        assert others
        for name, kind in others.items():
            with pytest.raises(
                KclError, match=re.escape(f"{method} has no setting '{name}'") + f".*{re.escape(kind.name)}"
            ):
                check_setting(method, name)
        for name in names:
            check_setting(method, name)

    @pytest.mark.parametrize(
        ("method", "mistake", "meant"),
        [
            ("kcl", "core_set_size", "coreset_size_per_class"),
            ("ewc", "ewc_lambda", "ewc_"),
            ("a-gem", "memory", "memory_per_class"),
        ],
    )
    def test_an_unknown_name_lists_the_nearest_the_method_has(self, method: str, mistake: str, meant: str) -> None:
        with pytest.raises(KclError, match=f"{method} has no setting '{mistake}'; did you mean .*{meant}"):
            check_setting(method, mistake)

    @pytest.mark.parametrize("method", METHODS)
    def test_a_method_takes_its_own_settings_only(self, method: str) -> None:
        for other in METHODS.values():
            if other.settings_type is METHODS[method].settings_type:
                METHODS[method](other.settings_type(), 10, 10)
            else:
                with pytest.raises(
                    KclError, match=re.escape(f"{method} takes {METHODS[method].settings_type.__name__}")
                ):
                    METHODS[method](other.settings_type(), 10, 10)

    @pytest.mark.parametrize("method", METHODS)
    def test_a_recipe_names_settings_that_some_method_has(self, method: str, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(BENCHMARK_RECIPES, "permuted-mnist", {"lr": 0.3, "basis": 64})
        with pytest.raises(KclError, match="basis"):
            published_settings("permuted-mnist", method)


class TestRecords:
    """Settings as files hold them: of every method in old files, and without what came later."""

    OLD = KclSettings(lr=0.3, bases=64).to_dict() | {"memory_per_class": 7, "ewc_strength": 2.0}

    def test_only_those_of_the_method_are_read(self) -> None:
        assert select_settings("kcl", self.OLD) == KclSettings(lr=0.3, bases=64)
        found = {method: settings_record(method, self.OLD) for method in METHODS}
        assert all(set(found[method]) == set(METHODS[method].settings_type.names()) for method in METHODS)
        assert found["a-gem"]["memory_per_class"] == 7
        assert found["ewc"]["ewc_strength"] == 2.0
        assert found["naive-sgd"]["lr"] == 0.3

    def test_those_that_are_missing_are_at_their_defaults(self) -> None:
        assert select_settings("kcl", {"bases": 64}) == KclSettings(bases=64)

    def test_what_no_method_has_is_kept_in_a_record_and_refused_for_a_run(self) -> None:
        unknown = {"of_a_later_version": 3}
        assert settings_record("ewc", unknown).items() >= unknown.items()
        assert settings_record("a-method-of-others", self.OLD) == self.OLD
        with pytest.raises(KclError, match="of_a_later_version"):
            select_settings("ewc", unknown)
