"""Ridge regression from sums: against scikit-learn and direct formulas, in any order and any portions."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from kcl.functional import primal, statistics
from kcl.functional.statistics import Statistics

CLASSES = 4


def _samples(seed: int, count: int, features: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(count, features, dtype=torch.float64, generator=generator)
    return x, torch.randint(CLASSES, (count,), generator=generator)


def _one_hot(labels: Tensor) -> Tensor:
    return torch.nn.functional.one_hot(labels, CLASSES).double()


def _solve(whole: Statistics, strength: float) -> Tensor:
    return primal.weights(primal.spectrum(whole), strength)


@pytest.mark.parametrize(("count", "features"), [(3, 20), (19, 20), (20, 20), (200, 20)])
@pytest.mark.parametrize("strength", [1e-3, 1.0, 50.0])
def test_weights_equal_scikit_learns_ridge(count: int, features: int, strength: float) -> None:
    linear_model = pytest.importorskip("sklearn.linear_model")
    x, labels = _samples(1, count, features)
    ridge = linear_model.Ridge(alpha=strength, fit_intercept=False, solver="cholesky").fit(x, _one_hot(labels))
    weights = _solve(statistics.of_samples(x, _one_hot(labels)), strength)
    torch.testing.assert_close(weights, torch.from_numpy(ridge.coef_.T), rtol=1e-8, atol=1e-9)


@given(st.integers(0, 2**31), st.integers(1, 60), st.integers(1, 12), st.integers(1, 30))
def test_portions_and_their_order_do_not_matter(seed: int, count: int, portions: int, features: int) -> None:
    x, labels = _samples(seed, count, features)
    order = np.random.default_rng(seed).permutation(count)
    parts = [
        statistics.of_samples(x[rows], _one_hot(labels[rows]))
        for rows in map(torch.from_numpy, np.array_split(order, min(portions, count)))
    ]
    whole = statistics.of_samples(x, _one_hot(labels))
    joined = statistics.add(parts)
    assert joined.count == whole.count
    torch.testing.assert_close(_solve(joined, 0.1), _solve(whole, 0.1), rtol=1e-8, atol=1e-8)


@given(st.integers(0, 2**31), st.integers(1, 40), st.integers(1, 40), st.integers(1, 25))
def test_subtracting_samples_is_never_having_seen_them(seed: int, kept: int, dropped: int, features: int) -> None:
    x, labels = _samples(seed, kept + dropped, features)
    whole = statistics.of_samples(x, _one_hot(labels))
    part = statistics.of_samples(x[kept:], _one_hot(labels[kept:]))
    without = statistics.of_samples(x[:kept], _one_hot(labels[:kept]))
    torch.testing.assert_close(_solve(statistics.subtract(whole, part), 0.1), _solve(without, 0.1), rtol=0, atol=1e-8)


@given(st.integers(0, 2**31), st.integers(5, 60), st.integers(1, 30), st.sampled_from([1e-4, 1e-2, 1.0, 30.0]))
def test_distances_are_mahalanobis_by_the_samples_themselves(
    seed: int, count: int, features: int, strength: float
) -> None:
    """One class has no samples."""
    x, labels = _samples(seed, count, features)
    queries = _samples(seed + 1, 7, features)[0]
    labels[labels == 3] = 0
    whole = statistics.of_samples(x, _one_hot(labels))
    spectrum = primal.spectrum(whole)
    root = primal.residual_root(spectrum, strength, whole.sums)
    responses, variance = queries @ _solve(whole, strength), primal.variance(spectrum, strength, queries)
    distances = primal.class_distances(root, strength, whole.sums, responses, variance)
    rows, direct = x.numpy(), np.full((7, CLASSES), np.inf)
    means = {label: rows[labels.numpy() == label].mean(0) for label in labels.unique().tolist()}
    centred = rows - np.stack([means[label] for label in labels.tolist()])
    covariance = (centred.T @ centred + strength * np.eye(features)) / count
    for label, mean in means.items():
        difference = queries.numpy() - mean
        direct[:, label] = np.sqrt((difference * np.linalg.solve(covariance, difference.T).T).sum(1))
    np.testing.assert_allclose(distances, direct, rtol=1e-6)


def test_a_weight_counts_a_sample_that_many_times() -> None:
    x, labels = _samples(2, 30, 8)
    times = torch.arange(30) % 4
    weighted = statistics.of_samples(x, _one_hot(labels), times.double())
    repeated = statistics.of_samples(x.repeat_interleave(times, 0), _one_hot(labels.repeat_interleave(times)))
    assert weighted.count == repeated.count
    torch.testing.assert_close(_solve(weighted, 0.3), _solve(repeated, 0.3))
    torch.testing.assert_close(_solve(repeated.scaled(2.0), 0.6), _solve(repeated, 0.3))


def test_placed_targets_share_a_place_as_joined_classes_do() -> None:
    x, labels = _samples(3, 50, 6)
    apart = statistics.of_samples(x, _one_hot(labels)).placed([0, 2, 0, 1], 5)
    joined = torch.nn.functional.one_hot(torch.tensor([0, 2, 0, 1])[labels], 5)
    torch.testing.assert_close(_solve(apart, 0.1), _solve(statistics.of_samples(x, joined), 0.1))


@pytest.mark.parametrize(("count", "features"), [(15, 40), (60, 12)])
class TestCriteria:
    """Against the formulas of the Gaussian process and of ridge regression with all samples at hand."""

    @pytest.fixture
    def samples(self, count: int, features: int) -> tuple[Tensor, Tensor]:
        x, labels = _samples(4, count, features)
        return x, _one_hot(labels)

    def test_evidence_is_the_marginal_likelihood(self, samples: tuple[Tensor, Tensor]) -> None:
        x, y = samples
        spectrum, count = primal.spectrum(statistics.of_samples(x, y)), len(x)

        def direct(strength: float) -> float:
            covariance = x @ x.mT / strength + torch.eye(count, dtype=torch.float64)
            variance = float((y * torch.linalg.solve(covariance, y)).sum()) / y.numel()
            normal = torch.distributions.MultivariateNormal(
                torch.zeros(count, dtype=torch.float64), variance * covariance
            )
            return -2.0 * float(normal.log_prob(y.mT).sum()) / y.shape[1]

        differences = [primal.evidence(spectrum, value) - direct(value) for value in (1e-2, 0.3, 5.0, 100.0)]
        assert max(differences) - min(differences) < 1e-8

    def test_cross_validation_is_golub_heath_wahba(self, samples: tuple[Tensor, Tensor]) -> None:
        x, y = samples
        spectrum = primal.spectrum(statistics.of_samples(x, y))
        for strength in (0.01, 1.0, 30.0):
            inverse = torch.linalg.inv(x.mT @ x + strength * torch.eye(x.shape[1], dtype=torch.float64))
            hat = x @ inverse @ x.mT
            expected = float((y - hat @ y).square().sum()) / (1.0 - float(hat.trace()) / len(x)) ** 2
            assert primal.generalised_cross_validation(spectrum, strength) == pytest.approx(expected, rel=1e-8)

    def test_variance_is_that_of_the_kernel(self, samples: tuple[Tensor, Tensor]) -> None:
        x, y = samples
        queries, strength = _samples(5, 9, x.shape[1])[0], 0.2
        gram = x @ x.mT + strength * torch.eye(len(x), dtype=torch.float64)
        across = queries @ x.mT
        expected = queries.square().sum(1) - (across * torch.linalg.solve(gram, across.mT).mT).sum(1)
        spectrum = primal.spectrum(statistics.of_samples(x, y))
        torch.testing.assert_close(primal.variance(spectrum, strength, queries), expected, rtol=1e-7, atol=1e-8)

    @pytest.mark.parametrize("rule", primal.STRENGTH_RULES)
    def test_the_best_strength_is_the_minimum(self, samples: tuple[Tensor, Tensor], rule: str) -> None:
        spectrum = primal.spectrum(statistics.of_samples(*samples))
        judge = primal.STRENGTH_RULES[rule]
        best = judge(spectrum, primal.best_strength(spectrum, rule))
        low, high = (math.log(bound * spectrum.scale) for bound in (primal.SMALLEST, primal.LARGEST))
        dense = [judge(spectrum, math.exp(value)) for value in np.linspace(low, high, 400)]
        assert best <= min(dense) + 1e-3 * abs(min(dense))

    @pytest.mark.parametrize("held", [4, 40])
    def test_the_error_on_held_out_samples_is_the_least(self, samples: tuple[Tensor, Tensor], held: int) -> None:
        x, y = samples
        spectrum = primal.spectrum(statistics.of_samples(x, y))
        queries, labels = _samples(7, held, x.shape[1])
        targets = _one_hot(labels)[:, : y.shape[1]]
        chosen = primal.held_out_strength(spectrum, statistics.of_samples(queries, targets))

        def error(strength: float) -> float:
            return float((queries @ primal.weights(spectrum, strength) - targets).square().sum())

        low, high = (math.log(bound * spectrum.scale) for bound in (primal.SMALLEST, primal.LARGEST))
        least = min(error(math.exp(value)) for value in np.linspace(low, high, 400))
        assert error(chosen) <= least * (1.0 + 1e-3)


@pytest.mark.parametrize(("count", "features"), [(15, 40), (40, 40), (90, 12)])
class TestFactors:
    """Above `MOST_DECOMPOSED` features G + λI is factorised for each λ: with the results of the eigendecomposition."""

    @pytest.fixture
    def both(self, count: int, features: int) -> tuple[primal.Spectrum, primal.Factors, Statistics]:
        x, labels = _samples(8, count, features)
        whole = statistics.of_samples(x, _one_hot(labels))
        return primal.spectrum(whole), primal.Factors(whole), whole

    def test_for_every_strength(self, both: tuple[primal.Spectrum, primal.Factors, Statistics]) -> None:
        spectrum, factors, whole = both
        queries = _samples(9, 7, whole.moment.tensor.shape[1])[0]
        columns = whole.cross[:, :2] @ torch.ones(2, 3, dtype=torch.float64)
        for strength in (1e-3, 0.1, 10.0):
            for what in (
                lambda made, strength: made.weights(strength),
                lambda made, strength: made.weights(strength, columns),
                lambda made, strength: made.variance(strength, queries),
                lambda made, strength: primal.residual_root(made, strength, whole.sums).abs(),
                primal.evidence,
                primal.generalised_cross_validation,
            ):
                one, other = (torch.as_tensor(what(made, strength)) for made in (spectrum, factors))
                torch.testing.assert_close(one, other, rtol=1e-8, atol=1e-8)
        assert factors.condition == pytest.approx(spectrum.condition, rel=1e-6)
        assert (factors.scale, factors.samples, factors.targets) == (spectrum.scale, spectrum.samples, spectrum.targets)

    def test_for_the_best_strength(self, both: tuple[primal.Spectrum, primal.Factors, Statistics]) -> None:
        """Found on a coarser grid: the criterion is as low."""
        spectrum, factors, whole = both
        x, labels = _samples(10, 30, whole.moment.tensor.shape[1])
        held = statistics.of_samples(x, _one_hot(labels))

        def error(strength: float) -> float:
            return float((x @ spectrum.weights(strength) - _one_hot(labels)).square().sum())

        for rule, judge in primal.STRENGTH_RULES.items():
            one, other = (judge(spectrum, primal.best_strength(made, rule)) for made in (spectrum, factors))
            assert other == pytest.approx(one, rel=1e-3)
        one, other = (error(primal.held_out_strength(made, held)) for made in (spectrum, factors))
        assert other == pytest.approx(one, rel=1e-3)

    def test_where_the_strength_is_lost_in_rounding(
        self, both: tuple[primal.Spectrum, primal.Factors, Statistics]
    ) -> None:
        assert bool(both[1].weights(1e-300).isfinite().all())


def test_many_features_are_factorised(monkeypatch: pytest.MonkeyPatch) -> None:
    x, labels = _samples(1, 30, 9)
    whole = statistics.of_samples(x, _one_hot(labels))
    assert isinstance(primal.decompose(whole), primal.Spectrum)
    monkeypatch.setattr(primal, "MOST_DECOMPOSED", 8)
    assert isinstance(primal.decompose(whole), primal.Factors)
    few_rows = statistics.of_samples(x[:5], _one_hot(labels[:5]))
    assert isinstance(primal.decompose(few_rows), primal.Spectrum)


def test_evidence_finds_the_noise_of_a_linear_model(draw64: Any) -> None:
    x, true = draw64.normal(400, 10), draw64.normal(10, 1)
    for noise in (0.1, 1.0, 3.0):
        y = x @ true + noise * draw64.normal(400, 1)
        strength = primal.best_strength(primal.spectrum(statistics.of_samples(x, y)))
        assert strength == pytest.approx(noise**2 / float(true.square().mean()), rel=1.0)


def test_condition_is_told(draw64: Any) -> None:
    x = draw64.normal(50, 4) * torch.tensor([1.0, 1.0, 1.0, 1e-4])
    assert 1e7 < primal.spectrum(statistics.of_samples(x, x[:, :1])).condition < 1e10
