"""Dropout from noise that is handed in."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from kcl.nets.backbone import dropout


@pytest.mark.parametrize("rate", [0.02, 0.1, 0.5, 0.9])
def test_zeroes_the_rate_and_scales_the_rest(draw: Any, rate: float) -> None:
    """The share of zeros lies within five standard errors of the rate; what stays is scaled up by 1/(1 − rate)."""
    x = torch.full((200, 100), 3.0)
    found = dropout(x, torch.tensor(rate), draw)
    dropped = (found == 0.0).float().mean().item()
    assert abs(dropped - rate) < 5.0 * math.sqrt(rate * (1.0 - rate) / x.numel())
    torch.testing.assert_close(found[found != 0.0], torch.full_like(found[found != 0.0], 3.0 / (1.0 - rate)))


def test_a_rate_of_zero_changes_nothing(draw: Any) -> None:
    x = draw.normal(20, 10)
    torch.testing.assert_close(dropout(x, torch.tensor(0.0), draw), x)


def test_the_gradient_passes_where_the_value_did(draw: Any) -> None:
    x = draw.normal(20, 10).requires_grad_()
    found = dropout(x, torch.tensor(0.5), draw)
    found.sum().backward()
    assert torch.equal(x.grad, torch.where(found == 0.0, 0.0, 2.0))


def test_the_same_noise_gives_the_same_mask(make_noise: Any) -> None:
    x, rate = torch.ones(20, 10), torch.tensor(0.5)
    assert torch.equal(dropout(x, rate, make_noise(3)), dropout(x, rate, make_noise(3)))
    assert not torch.equal(dropout(x, rate, make_noise(3)), dropout(x, rate, make_noise(4)))
