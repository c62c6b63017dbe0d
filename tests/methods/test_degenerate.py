"""Inputs that make kernel matrices singular, features vanish or numbers overflow: what happens is defined."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import kcl
from kcl.errors import KclError
from kcl.functional import kernels, ridge
from kcl.methods.kcl_settings import FEATURE_NORMS
from kcl.methods.ridge_head import STRENGTH_FLOOR
from kcl.methods.ridge_kernels import KERNELS

SMALL: dict[str, Any] = {"bases": 32, "width": 16, "coreset_size_per_class": 3, "dropout": 0.0, "backbone": "mlp"}


def _pair(kind: str, samples: int = 40) -> tuple[torch.Tensor, torch.Tensor]:
    labels = torch.arange(samples) % 2
    inputs = torch.randn(samples, 6, generator=torch.Generator().manual_seed(1)) + 2.0 * labels[:, None]
    if kind == "every sample the same":
        inputs = torch.ones(samples, 6)
    elif kind == "nothing but zeros":
        inputs = torch.zeros(samples, 6)
    elif kind == "two samples, repeated":
        inputs = torch.eye(6)[labels]
    elif kind == "the same samples under both labels":
        inputs = inputs[torch.arange(samples) // 2 * 2]
    elif kind == "huge":
        inputs = inputs * 1e18
    elif kind == "tiny":
        inputs = inputs * 1e-30
    return inputs, labels


KINDS = (
    "every sample the same",
    "nothing but zeros",
    "two samples, repeated",
    "the same samples under both labels",
    "tiny",
)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("norm", FEATURE_NORMS)
def test_singular_kernel_matrices_are_learned_and_answered(kind: str, kernel: str, norm: str) -> None:
    """λ ≥ 0.01 makes K + λI positive definite whatever the coreset: everything stays finite."""
    pair = _pair(kind)
    stream = kcl.ArrayStream(train=[pair, pair], test=[pair, pair])
    learner = kcl.KernelContinualLearner(stream, kernel=kernel, feature_norm=norm, **SMALL)
    for task in stream:
        learner.learn(task)
    for task in stream:
        assert torch.isfinite(learner.logits(pair[0], task)).all()
        assert 0.0 <= learner.accuracy(task) <= 100.0
    assert all(torch.isfinite(parameter).all() for parameter in learner.model.parameters())


@pytest.mark.parametrize("kernel", KERNELS)
def test_a_coreset_of_one_sample_per_class(kernel: str) -> None:
    pair = _pair("plain")
    stream = kcl.ArrayStream(train=[pair], test=[pair])
    learner = kcl.KernelContinualLearner(stream, kernel=kernel, **{**SMALL, "coreset_size_per_class": 1})
    learner.learn(stream[0])
    assert torch.isfinite(learner.logits(pair[0], 0)).all()


@pytest.mark.parametrize("copies", [2, 100])
def test_duplicates_with_lambda_at_its_floor_are_solved_in_single_precision(copies: int) -> None:
    """Against double precision, with every sample of the coreset there several times: condition up to 4·10⁴."""
    random = torch.Generator().manual_seed(0)
    features = torch.randn(4, 20, generator=random, dtype=torch.float64).repeat(copies, 1)
    features = features / features.norm(dim=1, keepdim=True)
    targets = torch.eye(4, dtype=torch.float64).repeat(copies, 1)
    strength = torch.tensor(STRENGTH_FLOOR, dtype=torch.float64)
    exact = ridge.primal_weights(features, targets, strength)
    found = ridge.primal_weights(features.float(), targets.float(), strength.float())
    torch.testing.assert_close(found.double(), exact, rtol=1e-2, atol=1e-3)
    gram = kernels.rbf(features.float(), features.float())
    dual = ridge.dual_weights(gram, targets.float(), strength.float())
    assert torch.isfinite(dual).all()


def test_a_matrix_beyond_single_precision_ends_the_run_before_its_weights_are_spoiled() -> None:
    pair = _pair("huge")
    stream = kcl.ArrayStream(train=[pair], test=[pair])
    learner = kcl.KernelContinualLearner(stream, kernel="polynomial", feature_norm="none", **SMALL)
    with pytest.raises(KclError, match="stopped being finite"):
        learner.learn(stream[0])
    assert all(torch.isfinite(parameter).all() for parameter in learner.model.parameters())


def test_scores_that_are_no_numbers_are_no_answers() -> None:
    """Where a classifier cannot be solved at the present weights its answers count as wrong, not as the first class."""
    pair = _pair("plain")
    stream = kcl.ArrayStream(train=[pair], test=[pair])
    learner = kcl.KernelContinualLearner(stream, kernel="linear", feature_norm="none", **SMALL)
    learner.learn(stream[0])
    with torch.no_grad():
        for parameter in learner.model.parameters():
            parameter.mul_(1e30)
    learner._stack.weights_changed()
    assert learner.accuracy(stream[0]) == 0.0
    with pytest.raises(KclError, match="not finite"):
        learner.predict(pair[0], 0)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 1e300])
def test_inputs_that_are_no_numbers_are_refused(value: float) -> None:
    inputs, labels = _pair("plain")
    spoiled = inputs.double()
    spoiled[7, 3] = value
    with pytest.raises(KclError, match="not finite"):
        kcl.ArrayStream(train=[(spoiled, labels)])
    stream = kcl.ArrayStream(train=[(inputs, labels)])
    learner = kcl.KernelContinualLearner(stream, **SMALL)
    learner.learn(stream[0])
    with pytest.raises(KclError, match="not finite"):
        learner.predict(spoiled, stream[0])
