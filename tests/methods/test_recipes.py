"""The published settings, as the paper's appendix and the baseline's authors print them."""

from __future__ import annotations

from typing import Any

import pytest

from kcl.benchmarks.registry import BENCHMARKS
from kcl.core.settings import Settings
from kcl.errors import KclError
from kcl.methods.recipes import BENCHMARK_RECIPES, METHODS, SPLIT, find_method, published_backbone, published_settings

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
    assert (settings.memory_per_class, settings.recalled_per_step) == (1, 10)
    assert (settings.ewc_fisher, settings.ewc_strength, settings.ewc_decay) == ("running", 10.0, 0.9)


@pytest.mark.parametrize("benchmark", SPLIT)
def test_split_benchmarks_have_rates_of_their_own(benchmark: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(BENCHMARK_RECIPES, benchmark, {"lr": 0.3, "lr_decay": 0.95, "dropout": 0.02})
    stable = published_settings(benchmark, "stable-sgd")
    assert (stable.lr, stable.lr_decay, stable.dropout, stable.batch_size) == (0.15, 0.85, 0.1, 10)
    for method in ("ewc", "a-gem", "er-reservoir", "multi-task"):
        settings = published_settings(benchmark, method)
        assert (settings.lr, settings.lr_decay, settings.dropout, settings.momentum) == (0.03, 1.0, 0.0, 0.0)
    assert published_settings(benchmark, "ewc").ewc_window == 50


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("benchmark", BENCHMARKS)
def test_every_pair_has_settings(benchmark: str, method: str) -> None:
    assert isinstance(published_settings(benchmark, method), Settings)


def test_an_unknown_method_names_the_nearest() -> None:
    with pytest.raises(KclError, match="naive-sgd"):
        find_method("naive-sdg")


def test_the_default_settings_are_those_of_permuted_mnist() -> None:
    assert Settings() == published_settings("permuted-mnist", "kcl")
