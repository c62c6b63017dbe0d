"""Targets with which a coreset has the class means of a whole task."""

import pytest
import torch

from kcl.functional.matching import matched_targets


def samples(count: int, width: int, classes: int) -> tuple[torch.Tensor, torch.Tensor]:
    random = torch.Generator().manual_seed(0)
    labels = torch.arange(count) % classes
    return torch.randn(count, width, generator=random) + 3.0 * torch.eye(classes, width)[labels], labels


def test_a_coreset_that_spans_the_features_gets_nearly_the_means_of_all_samples() -> None:
    features, labels = samples(4000, 8, 4)
    coreset, targets = features[:80], torch.eye(4)[labels[:80]]
    means = torch.stack([features[labels == number].mean(0) for number in range(4)])
    matched = matched_targets(coreset, targets, means)
    before = (targets.mT @ coreset / 20.0 - means).norm()
    assert (matched.mT @ coreset / 20.0 - means).norm() < 0.3 * before
    torch.testing.assert_close(matched.sum(0), targets.sum(0))


def test_means_move_with_the_features() -> None:
    """After an affine change of the features, the means from the same targets are the changed means."""
    features, labels = samples(4000, 8, 4)
    coreset, targets = features[:80], torch.eye(4)[labels[:80]]
    means = torch.stack([features[labels == number].mean(0) for number in range(4)])
    matched = matched_targets(coreset, targets, means)
    change, shift = torch.randn(8, 8, generator=torch.Generator().manual_seed(1)), torch.arange(8.0)
    moved = matched.mT @ (coreset @ change + shift) / 20.0
    torch.testing.assert_close(moved, (matched.mT @ coreset / 20.0) @ change + shift, atol=1e-4, rtol=1e-4)


def test_it_is_the_ridge_solution() -> None:
    """By scikit-learn's Ridge on centred features, with the weights of the coreset's samples as coefficients."""
    linear_model = pytest.importorskip("sklearn.linear_model")
    features, labels = samples(300, 6, 3)
    coreset, targets = features[:30].double(), torch.eye(3, dtype=torch.float64)[labels[:30]]
    means = torch.stack([features[labels == number].mean(0) for number in range(3)]).double()
    centred = coreset - coreset.mean(0)
    strength = 0.1 * float(centred.square().sum()) / 6
    missing = means - targets.mT @ coreset / 10.0
    ridge = linear_model.Ridge(alpha=strength, fit_intercept=False).fit(centred.mT.numpy(), missing.mT.numpy())
    weights = torch.from_numpy(ridge.coef_).mT
    expected = targets + 10.0 * (weights - weights.mean(0))
    torch.testing.assert_close(matched_targets(coreset, targets, means).double(), expected, atol=1e-5, rtol=1e-4)


def test_features_of_a_diverged_network_raise_nothing() -> None:
    matched = matched_targets(torch.full((6, 4), torch.nan), torch.eye(2)[torch.arange(6) % 2], torch.ones(2, 4))
    assert not torch.isfinite(matched).any()


def test_equal_samples_change_nothing() -> None:
    targets = torch.eye(2)[torch.arange(6) % 2]
    assert torch.equal(matched_targets(torch.ones(6, 4), targets, torch.ones(2, 4)), targets)
