"""The networks behind posterior and prior."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from kcl.nets.amortized import AmortizedGaussians

FEATURES = 5


@pytest.fixture
def net(seeded: Any) -> AmortizedGaussians:
    """Two Gaussians, as posterior and prior."""
    with seeded(0):
        return AmortizedGaussians(FEATURES, 2)


def _elu(x: Tensor) -> Tensor:
    return torch.where(x > 0.0, x, x.exp() - 1.0)


def _three_layers(net: AmortizedGaussians, which: int, x: Tensor) -> Tensor:
    for layer in range(3):
        x = (_elu(x) if layer else x) @ net.weights[layer][which] + net.biases[layer][which, 0]
    return x


def test_each_is_linear_elu_linear_elu_linear_from_a_row_of_its_own(net: AmortizedGaussians, draw: Any) -> None:
    pooled = draw.normal(2, FEATURES)
    for number, found in enumerate(net(pooled)):
        torch.testing.assert_close(found.mean, _three_layers(net, 2 * number, pooled[number]))
        torch.testing.assert_close(found.log_variance, _three_layers(net, 2 * number + 1, pooled[number]))


def test_the_first_is_the_same_without_the_second(net: AmortizedGaussians, draw: Any) -> None:
    """At test there is a coreset but no batch: the posterior must not be the prior's."""
    pooled = draw.normal(2, FEATURES)
    (alone,), (both, _) = net(pooled[:1]), net(pooled)
    torch.testing.assert_close(alone.mean, both.mean)
    torch.testing.assert_close(alone.log_variance, both.log_variance)


@pytest.mark.parametrize("which", range(4))
def test_means_and_log_variances_share_nothing(net: AmortizedGaussians, draw: Any, which: int) -> None:
    values = [value for gaussian in net(draw.normal(2, FEATURES)) for value in gaussian]
    values[which].sum().backward()
    for parameter in net.parameters():
        used = parameter.grad.flatten(1).abs().sum(-1) > 0.0
        assert used.tolist() == [number == which for number in range(4)]


def test_begins_as_pytorch_begins_its_linear_layers(seeded: Any) -> None:
    """Uniform within ±1/√features, weights and biases alike. The largest of n draws misses the bound b by b/n on
    average, and by more than 20 b/n with a chance of e⁻²⁰.
    """
    with seeded(0):
        net = AmortizedGaussians(64)
    bound = 1.0 / math.sqrt(64)
    for parameter in net.parameters():
        assert parameter.abs().max() <= bound
        assert parameter.abs().max() > bound * (1.0 - 20.0 / parameter.numel())
        assert abs(parameter.mean()) < 5.0 * bound / math.sqrt(3.0 * parameter.numel())


def test_every_layer_has_feature_width(net: AmortizedGaussians) -> None:
    assert sum(parameter.numel() for parameter in net.parameters()) == 4 * 3 * (FEATURES * FEATURES + FEATURES)
