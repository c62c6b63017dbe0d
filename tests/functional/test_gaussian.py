"""Diagonal Gaussians against torch.distributions and their own moments."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
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


class TestBounded:
    @given(moderate, st.floats(0.5, 20.0))
    def test_stays_within_and_keeps_order_and_sign(self, value: float, bound: float) -> None:
        found = gaussian.bounded(_gaussian([1.0, 1.0], [value, value + 0.5]), bound)
        low, high = found.log_variance.tolist()
        assert -bound <= low <= high <= bound
        assert low == pytest.approx(bound * math.tanh(value / bound))
        assert found.mean.tolist() == [1.0, 1.0]

    def test_hardly_changes_what_is_far_within(self) -> None:
        free = _gaussian([0.0] * 3, [-0.3, 0.01, 0.3])
        torch.testing.assert_close(gaussian.bounded(free, 10.0).log_variance, free.log_variance, rtol=1e-3, atol=0)
