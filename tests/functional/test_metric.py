"""The metric that counts less what varies within classes."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from kcl.functional.metric import metric_of, scatter_within
from kcl.functional.ridge import primal_weights

LABELS = torch.tensor([0, 0, 0, 1, 1, 2])


def _features(seed: int = 0, count: int = 6, width: int = 4) -> torch.Tensor:
    return torch.randn(count, width, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_scatter_is_that_of_every_class_about_its_own_mean() -> None:
    features = _features()
    expected = torch.zeros(4, 4, dtype=torch.float64)
    for label in range(3):
        own = features[label == LABELS]
        for row in own - own.mean(0):
            expected += torch.outer(row, row)
    torch.testing.assert_close(scatter_within(features, F.one_hot(LABELS).double()), expected)


def test_a_class_without_samples_adds_nothing() -> None:
    targets = F.one_hot(LABELS, 5).double()
    one, two = scatter_within(_features(), targets), scatter_within(_features(), targets[:, :3])
    torch.testing.assert_close(one, two)


@pytest.mark.parametrize("share", [0.3, 0.9])
def test_metric_is_the_inverse_root_of_the_mixture(share: float) -> None:
    """Of several runs at once too, whatever the unit of the features."""
    scatters = torch.stack([1e-4 * scatter_within(_features(seed), F.one_hot(LABELS).double()) for seed in range(3)])
    for scatter, metric in zip(scatters, metric_of(scatters, share), strict=True):
        torch.testing.assert_close(metric, metric.mT)
        mixture = (1 - share) * torch.eye(4).double() + share * 4 * scatter / scatter.trace()
        torch.testing.assert_close(metric @ mixture @ metric, torch.eye(4).double())


def test_where_nothing_varies_or_all_directions_alike_it_changes_nothing() -> None:
    identity = torch.eye(4, dtype=torch.float64)
    for scatter in (torch.zeros(4, 4).double(), 0.03 * identity):
        torch.testing.assert_close(metric_of(scatter, 0.7), identity)


def test_rounding_is_no_scatter() -> None:
    """Samples that are three times the same, in single precision."""
    features, labels = _features(count=5, width=40).float().repeat(3, 1), torch.arange(5).repeat(3)
    assert not scatter_within(features, F.one_hot(labels).float()).any()
    moved = features + 1e-4 * _features(1, 15, 40).float()
    assert scatter_within(moved, F.one_hot(labels).float()).trace() > 0.0


def test_a_share_near_one_is_as_exact_as_single_precision_lets_it_be() -> None:
    scatter = scatter_within(_features(count=6, width=30), F.one_hot(LABELS).double())  # of rank three
    expected, found = metric_of(scatter, 0.9999), metric_of(scatter.float(), 0.9999)
    assert (found.double() - expected).norm() < 1e-2 * expected.norm()


def test_a_run_that_is_not_finite_leaves_the_others_as_they_are() -> None:
    scatters = torch.stack([scatter_within(_features(seed), F.one_hot(LABELS).double()) for seed in range(4)])
    alone = metric_of(scatters, 0.6)
    for place, value in ((1, torch.inf), (2, torch.nan), (3, 1e308)):
        scatters[place, 0, 0] = scatters[place, 1, 1] = value  # the sum of two such is too large
    found = metric_of(scatters, 0.6)
    assert torch.equal(found[0], alone[0])
    assert found[1:].isnan().all()


def test_ridge_in_the_metric_is_ridge_with_another_penalty() -> None:
    """Σ‖y − wx‖² + λ wᵀM⁻²w, solved for w itself."""
    features, targets = _features(), F.one_hot(LABELS).double()
    metric = metric_of(scatter_within(_features(1), targets), 0.6)
    found = metric @ primal_weights(features @ metric, targets, torch.tensor(0.2, dtype=torch.float64))
    penalty = 0.2 * torch.linalg.inv(metric @ metric)
    torch.testing.assert_close(found, torch.linalg.solve(features.mT @ features + penalty, features.mT @ targets))


def test_a_direction_that_varies_within_classes_counts_less() -> None:
    features = torch.tensor([[0.0, 1.0], [0.0, -1.0], [1.0, 1.0], [1.0, -1.0]], dtype=torch.float64)
    metric = metric_of(scatter_within(features, F.one_hot(torch.tensor([0, 0, 1, 1])).double()), 0.5)
    assert metric[1, 1] < 1.0 < metric[0, 0]
