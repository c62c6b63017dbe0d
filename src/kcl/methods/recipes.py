"""The settings each method is published with on each benchmark: the paper's appendix table and the baselines' own.

Source for KCL: the hyperparameter table in the appendix of Derakhshani et al. (2021). The paper gives none for naive
SGD; it is run with lr 0.01, no decay, no dropout, batch 10 and momentum 0.8.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kcl.errors import KclError
from kcl.methods.kcl import KernelContinualLearning
from kcl.methods.method import Method
from kcl.methods.sgd import NaiveSGD
from kcl.nets.backbone import Backbone
from kcl.nets.mlp import MLP
from kcl.settings import Settings, nearest

METHODS: dict[str, type[Method]] = {method.name: method for method in (KernelContinualLearning, NaiveSGD)}

_MNIST = {
    "batch_size": 10,
    "lr": 0.1,
    "lr_decay": 0.8,
    "momentum": 0.8,
    "dropout": 0.5,
    "coreset_size_per_class": 20,
    "bases": 1024,
    "tau": 0.01,
}
# Our own choice, made without a search, for 1,442 training samples where MNIST has 60,000: nothing was published.
_DIGITS = _MNIST | {"lr_decay": 0.95, "dropout": 0.1, "bases": 256, "width": 128}

BENCHMARK_RECIPES: dict[str, dict[str, Any]] = {
    "permuted-mnist": _MNIST,
    "rotated-mnist": _MNIST,
    "permuted-digits": _DIGITS,
    "rotated-digits": _DIGITS,
}
METHOD_RECIPES: dict[str, dict[str, Any]] = {
    "kcl": {},
    "naive-sgd": {"lr": 0.01, "lr_decay": 1.0, "dropout": 0.0},
}


def published_settings(benchmark: str, method: str) -> Settings:
    """A method's published settings on a benchmark, before the user's own changes."""
    return Settings().replace(**(BENCHMARK_RECIPES[benchmark] | METHOD_RECIPES[method]))


def published_backbone(input_shape: Sequence[int], settings: Settings) -> Backbone:
    """The backbone a benchmark is published with."""
    return MLP(input_shape, settings.width, settings.layers, settings.dropout)


def find_method(name: str) -> type[Method]:
    if name not in METHODS:
        raise KclError(f"unknown method {name!r}; {nearest(name, list(METHODS))}")
    return METHODS[name]
