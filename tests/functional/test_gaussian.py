"""Diagonal Gaussians against torch.distributions and their own moments."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from jaxtyping import TypeCheckError
from torch.distributions import Normal, kl_divergence

from kcl.functional import gaussian
from kcl.functional.gaussian import DiagonalGaussian

moderate = st.floats(-3.0, 3.0)
pairs = st.integers(1, 6).flatmap(lambda d: st.tuples(*[st.lists(moderate, min_size=d, max_size=d)] * 4))


def _gaussian(mean: list[float], log_variance: list[float]) -> DiagonalGaussian:
    return DiagonalGaussian(*(torch.tensor(values, dtype=torch.float64) for values in (mean, log_variance)))


def _normal(of: DiagonalGaussian) -> Normal:
    return Normal(of.mean, of.log_variance.exp().sqrt())


class TestDivergence:
    @given(pairs)
    def test_equals_torch_distributions(self, values: tuple[list[float], ...]) -> None:
        q, p = _gaussian(*values[:2]), _gaussian(*values[2:])
        expected = kl_divergence(_normal(q), _normal(p)).sum()
        torch.testing.assert_close(gaussian.kl_divergence(q, p), expected, rtol=1e-9, atol=1e-11)

    @given(pairs)
    def test_is_not_negative_and_zero_for_equals(self, values: tuple[list[float], ...]) -> None:
        q, p = _gaussian(*values[:2]), _gaussian(*values[2:])
        assert gaussian.kl_divergence(q, p) >= -1e-14
        assert gaussian.kl_divergence(q, q) == 0.0

    @pytest.mark.parametrize("moved", ["mean", "log_variance"])
    @pytest.mark.parametrize("by", [-1.0, -1e-3, 1e-3, 1.0])
    def test_is_positive_as_soon_as_one_number_differs(self, moved: str, by: float) -> None:
        q = _gaussian([0.5, -1.0, 2.0], [0.1, -0.7, 0.3])
        values = getattr(q, moved).clone()
        values[1] += by
        p = q._replace(**{moved: values})
        assert gaussian.kl_divergence(q, p) > 0.0
        assert gaussian.kl_divergence(p, q) > 0.0

    def test_of_nearly_equal_gaussians_is_not_lost_in_single_precision(self, draw: Any) -> None:
        """Near its minimum the divergence is quadratically small: r²/4 for a difference r of the log-variances."""
        q = DiagonalGaussian(draw.normal(256), draw.normal(256))
        for difference in (1e-2, 1e-3, 1e-4):
            p = q._replace(log_variance=q.log_variance + difference)
            exact = gaussian.kl_divergence(*(DiagonalGaussian(*(t.double() for t in each)) for each in (q, p))).item()
            assert gaussian.kl_divergence(q, p).item() == pytest.approx(exact, rel=0.05)

    def test_to_the_uninformative_prior(self, draw64: Any) -> None:
        """KL(q ‖ N(0, I)) = ½ Σ (σ² + μ² − 1 − ln σ²)."""
        q = DiagonalGaussian(draw64.normal(7), draw64.normal(7))
        prior = gaussian.standard_normal_like(q)
        assert (prior.mean == 0.0).all()
        assert (prior.log_variance == 0.0).all()
        expected = 0.5 * (q.log_variance.exp() + q.mean.square() - 1.0 - q.log_variance).sum()
        torch.testing.assert_close(gaussian.kl_divergence(q, prior), expected)

    def test_has_the_right_gradient(self, draw64: Any) -> None:
        def divergence(*values: torch.Tensor) -> torch.Tensor:
            return gaussian.kl_divergence(DiagonalGaussian(*values[:2]), DiagonalGaussian(*values[2:]))

        assert torch.autograd.gradcheck(divergence, tuple(draw64.normal(4).requires_grad_() for _ in range(4)))


class TestSample:
    def test_is_mean_plus_deviation_times_noise(self, draw64: Any) -> None:
        q, noise = DiagonalGaussian(draw64.normal(3), draw64.normal(3)), draw64.normal(5, 3)
        found = gaussian.sample(q, noise)
        for row in range(5):
            for column in range(3):
                deviation = math.sqrt(math.exp(q.log_variance[column].item()))
                expected = q.mean[column].item() + deviation * noise[row, column].item()
                assert found[row, column].item() == pytest.approx(expected, rel=1e-12)

    def test_has_the_mean_and_the_variance(self, draw64: Any) -> None:
        """Within five standard errors, σ/√n and σ²√(2/n): a false alarm in a million for each of eight numbers."""
        q, count = DiagonalGaussian(draw64.normal(4), draw64.normal(4)), 20_000
        drawn, variance = gaussian.sample(q, draw64.normal(count, 4)), q.log_variance.exp()
        assert ((drawn.mean(0) - q.mean).abs() < 5.0 * (variance / count).sqrt()).all()
        assert ((drawn.var(0) - variance).abs() < 5.0 * variance * math.sqrt(2.0 / count)).all()

    def test_has_the_right_gradient(self, draw64: Any) -> None:
        noise = draw64.normal(5, 3)

        def drawn(mean: torch.Tensor, log_variance: torch.Tensor) -> torch.Tensor:
            return gaussian.sample(DiagonalGaussian(mean, log_variance), noise)

        assert torch.autograd.gradcheck(drawn, tuple(draw64.normal(3).requires_grad_() for _ in range(2)))

    def test_noise_has_a_column_per_feature(self, draw64: Any) -> None:
        with pytest.raises((TypeCheckError, RuntimeError)):
            gaussian.sample(DiagonalGaussian(draw64.normal(3), draw64.normal(3)), draw64.normal(5, 4))
