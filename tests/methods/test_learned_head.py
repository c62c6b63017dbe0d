"""λ, scale and shift of a task."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from kcl.errors import KclError
from kcl.methods.kcl_settings import KclSettings
from kcl.methods.ridge_head import KernelRidgeHead


@given(st.floats(-(2.0**100), 2.0**100, width=32))
def test_the_strength_is_positive_whatever_is_learned(raw: float) -> None:
    head = KernelRidgeHead()
    head.raw_strength.data.fill_(raw)
    assert head().strength.item() >= 0.01 * (1.0 - 1e-6)
    assert head().strength.item() == pytest.approx(abs(raw) + 0.01, rel=1e-6)


def test_begins_as_published() -> None:
    """λ = 0.1 + 0.01, scale 1, shift 0."""
    state = KernelRidgeHead()()
    assert [value.item() for value in state] == pytest.approx([0.11, 1.0, 0.0])


@pytest.mark.parametrize("strength", [0.0, 0.1, 5.0])
def test_every_permitted_beginning_can_be_learned_from(strength: float) -> None:
    """d|l|/dl is ±1; a gradient of zero would keep λ where it is for ever."""
    try:
        head = KernelRidgeHead(KclSettings(ridge_strength=strength).ridge_strength)
    except KclError:
        return  # what is not permitted needs no gradient
    head().strength.backward()
    assert abs(head.raw_strength.grad.item()) == 1.0


def test_all_three_are_learned() -> None:
    assert len(list(KernelRidgeHead().parameters())) == 3


def test_restart_forgets_what_was_learned() -> None:
    head = KernelRidgeHead(0.7)
    before = [value.item() for value in head()]
    with torch.no_grad():
        for parameter in head.parameters():
            parameter.fill_(math.pi)
    head.restart()
    assert [value.item() for value in head()] == before == pytest.approx([0.71, 1.0, 0.0])
    assert all(parameter.requires_grad for parameter in head.parameters())
