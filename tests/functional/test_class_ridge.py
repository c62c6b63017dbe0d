"""Balanced ridge regression on classes, against dense solves; leave-one-out, against solving without the sample."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from kcl.functional import class_ridge


def _samples(classes: int = 3, copies: int = 1, features: int = 7) -> tuple[Tensor, Tensor]:
    """Unequal classes; copies of a sample are near to each other, a block of samples apart."""
    random = torch.Generator().manual_seed(1)
    labels = torch.tensor([0] * 9 + [1] * 4 + [2] * 6)[: 19 if classes == 3 else 13]
    x = torch.randn(len(labels), features, generator=random, dtype=torch.float64) + labels[:, None]
    near = [x + 0.1 * torch.randn(x.shape, generator=random, dtype=torch.float64) for _ in range(copies)]
    return torch.cat(near), labels.repeat(copies)


def _dense(x: Tensor, labels: Tensor, weights: Tensor, strength: float, classes: int) -> Tensor:
    targets = torch.nn.functional.one_hot(labels, classes).double()
    gram = x.mT @ (weights[:, None] * x) + strength * torch.eye(x.shape[1], dtype=torch.float64)
    return torch.linalg.solve(gram, x.mT @ (weights[:, None] * targets))


@pytest.mark.parametrize("features", [7, 40])
def test_solution(features: int) -> None:
    x, labels = _samples(features=features)
    found = class_ridge.solve(x, labels, 3)
    weights = class_ridge.balanced(labels, 3)
    assert torch.allclose(found.weights, _dense(x, labels, weights, found.strength, 3), atol=1e-9)


def test_classes_weigh_the_same() -> None:
    _, labels = _samples()
    weights = class_ridge.balanced(labels, 3)
    sums = [float(weights[labels == label].sum()) for label in range(3)]
    assert sums == pytest.approx([sum(sums) / 3] * 3)
    assert sum(sums) == pytest.approx(len(labels))


@pytest.mark.parametrize("copies", [1, 3])
@pytest.mark.parametrize("features", [5, 70])
def test_samples_left_out_with_their_copies(copies: int, features: int) -> None:
    x, labels = _samples(copies=copies, features=features)
    found, weights = class_ridge.solve(x, labels, 3, copies), class_ridge.balanced(labels, 3)
    count = len(x) // copies
    for sample in range(count):
        out = torch.arange(len(x)) % count == sample
        rest = _dense(x[~out], labels[~out], weights[~out], found.strength, 3)
        assert torch.allclose(found.left_out[out], x[out] @ rest, atol=1e-7)


def test_the_strength_leaves_the_smallest_error() -> None:
    x, labels = _samples(features=40)
    found, weights = class_ridge.solve(x, labels, 3), class_ridge.balanced(labels, 3)
    targets = torch.nn.functional.one_hot(labels, 3).double()

    def error(strength: float) -> float:
        total = 0.0
        for sample in range(len(x)):
            kept = torch.arange(len(x)) != sample
            rest = _dense(x[kept], labels[kept], weights[kept], strength, 3)
            total += float(weights[sample] * (x[sample] @ rest - targets[sample]).square().sum())
        return total

    errors = {strength: error(strength * found.spectrum.scale) for strength in class_ridge.STRENGTHS}
    assert found.strength == pytest.approx(min(errors, key=lambda each: errors[each]) * found.spectrum.scale)


def test_many_samples_are_left_out_in_part(monkeypatch: pytest.MonkeyPatch) -> None:
    x, labels = _samples(copies=2)
    whole = class_ridge.solve(x, labels, 3, 2)
    monkeypatch.setattr(class_ridge, "MOST_LEFT_OUT", 10)
    part = class_ridge.solve(x, labels, 3, 2)
    assert len(part.rows) == 20
    if part.strength == whole.strength:
        assert torch.allclose(part.left_out, whole.left_out[part.rows], atol=1e-9)
