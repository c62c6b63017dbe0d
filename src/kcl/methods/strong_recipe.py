"""The strong recipe: the same method and memory, each sample of the stream drawn once, and what the paper leaves on the
table; and the light one, which differs in the loss that trains KCL's network. `docs/strong.md` explains each step.

KCL alone gets the settings that act on its coresets (`soft_targets`, `test_strength`, `batch_norm`, `warm_start`) and
those that were tuned for it; every method that trains gets everything else, so that they can be compared. Values come
from searches on the first three tasks of four benchmarks (results/tuning; docs/strong-search.md says where test results
played a part), or are starting points; other benchmarks get those of their kind. `log_variance_bound` matters only to
users who choose VRF: the recipe's linear kernel has no variances.
"""

from __future__ import annotations

from typing import Any, Literal, overload

from kcl.core.settings import Settings, nearest
from kcl.errors import KclError
from kcl.methods.kcl_settings import KclSettings
from kcl.methods.recipes import SPLIT, find_method, published_settings

RECIPES = {
    "paper": "the published settings, which reproduce the paper",
    "strong": "rotation labels, Muon, averaged weights, views at test and more, as docs/strong.md explains",
    "light": "strong, but KCL's network is trained with a linear output layer, which is much cheaper (docs/strong.md)",
}

_IMAGES: dict[str, Any] = {
    "rotation_labels": True,
    "optimizer": "muon",
    "muon_lr": 0.005,
    "muon_lr_decay": 0.9,
    "momentum": 0.8,
    "weight_average": 0.9999,
    "feature_stages": 3,
    "test_views": "flip",
    "updates_per_batch": 2,
    "augmentation": "flip",
}
_IMAGES_KCL: dict[str, Any] = {
    "kernel": "linear",
    "average_ramp": 2.0,
    "soft_targets": 0.5,
    "test_strength": 0.3,
    "shared_metric": 0.5,
    "batch_norm": "coreset",
    "log_variance_bound": 5.0,
}
_DIGITS: dict[str, Any] = {"dropout": 0.1, "weight_average": 0.9999}
_DIGITS_KCL: dict[str, Any] = {
    "kernel": "linear",
    "lr": 0.05,
    "average_ramp": 3.0,
    "warm_start": True,
    "soft_targets": 0.5,
    "log_variance_bound": 5.0,
}

_BENCHMARK_KCL: dict[str, dict[str, Any]] = {
    "split-miniimagenet": {"average_ramp": 1.25, "soft_targets": 1.0, "test_strength": 0.1, "batch_norm": "running"},
    "permuted-mnist": {"test_strength": 0.3},
    "rotated-mnist": {"dropout": 0.05},
}
"""Values for KCL on single benchmarks that differ from those of their kind."""

# What the light recipe changes in the strong one for KCL. λ is not learned: `test_strength` sets it.
_LIGHT: dict[str, Any] = {"network_loss": "linear", "soft_targets": 0.0, "matched_targets": True}
_LIGHT_IMAGES: dict[str, Any] = {
    "lr": 0.1,
    "lr_decay": 1.0,
    "updates_per_batch": 4,
    "shared_metric": 0.9,
    "test_strength": 5.0,
    "class_head": "shared-covariance",
    "class_features": "linear",
}
_LIGHT_BENCHMARK: dict[str, dict[str, Any]] = {
    "permuted-mnist": {"test_strength": 30.0},
    "rotated-mnist": {"test_strength": 30.0},
}


def recipe_changes(recipe: str, benchmark: str, method: str) -> dict[str, Any]:
    """The values that a recipe gives a method on a benchmark instead of the published ones."""
    if recipe not in RECIPES:
        raise KclError(f"unknown recipe {recipe!r}; {nearest(recipe, list(RECIPES))}")
    if recipe == "paper" or not find_method(method).trains:
        return {}
    images = benchmark in SPLIT
    shared = _IMAGES if images else _DIGITS
    if not find_method(method).keeps_coresets:
        return shared
    strong = shared | (_IMAGES_KCL if images else _DIGITS_KCL) | _BENCHMARK_KCL.get(benchmark, {})
    if recipe == "strong":
        return strong
    return strong | _LIGHT | (_LIGHT_IMAGES if images else _LIGHT_BENCHMARK.get(benchmark, {}))


@overload
def recipe_settings(recipe: str, benchmark: str, method: Literal["kcl"]) -> KclSettings: ...


@overload
def recipe_settings(recipe: str, benchmark: str, method: str) -> Settings: ...


def recipe_settings(recipe: str, benchmark: str, method: str) -> Settings:
    """The settings a recipe gives a method on a benchmark, before the user's changes."""
    return published_settings(benchmark, method).replace(**recipe_changes(recipe, benchmark, method))


@overload
def strong_settings(benchmark: str, method: Literal["kcl"]) -> KclSettings: ...


@overload
def strong_settings(benchmark: str, method: str) -> Settings: ...


def strong_settings(benchmark: str, method: str) -> Settings:
    """A method's strong settings on a benchmark."""
    return recipe_settings("strong", benchmark, method)
