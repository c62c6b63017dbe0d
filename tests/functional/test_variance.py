"""The predictive variance against the inverse written out and against scikit-learn's Gaussian process."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from kcl.functional import kernels, ridge


def _variance(x: torch.Tensor, queries: torch.Tensor, strength: float) -> torch.Tensor:
    gram, cross = kernels.rbf(x, x), kernels.rbf(x, queries)
    halves = ridge.half_solve(gram, cross, torch.tensor(strength, dtype=x.dtype))
    return ridge.predictive_variance(torch.ones(len(queries), dtype=x.dtype), halves)


@pytest.mark.parametrize("strength", [0.01, 0.11, 10.0])
@pytest.mark.parametrize("size", [1, 7, 60])
def test_equals_the_formula_with_an_inverse(draw64: Any, size: int, strength: float) -> None:
    x, queries = draw64.normal(size, 5), draw64.normal(9, 5)
    inverse = torch.linalg.inv(kernels.rbf(x, x) + strength * torch.eye(size, dtype=torch.float64))
    cross = kernels.rbf(x, queries)
    expected = torch.stack([1.0 - cross[:, j] @ inverse @ cross[:, j] for j in range(9)])
    torch.testing.assert_close(_variance(x, queries, strength), expected, rtol=1e-9, atol=1e-12)


def test_equals_scikit_learns_gaussian_process(draw64: Any) -> None:
    process = pytest.importorskip("sklearn.gaussian_process")
    x, queries = draw64.normal(20, 4), draw64.normal(6, 4)
    fitted = process.GaussianProcessRegressor(process.kernels.RBF(1.0), alpha=0.2, optimizer=None).fit(
        x.numpy(), x[:, 0].numpy()
    )
    deviation = torch.from_numpy(fitted.predict(queries.numpy(), return_std=True)[1])
    torch.testing.assert_close(_variance(x, queries, 0.2), deviation**2, rtol=1e-8, atol=1e-10)


def test_is_small_at_the_coreset_and_the_prior_far_away(draw64: Any) -> None:
    x = draw64.normal(20, 4)
    assert _variance(x, x, 1e-3).max() < 1e-2
    torch.testing.assert_close(_variance(x, x + 100.0, 1e-3), torch.ones(20, dtype=torch.float64))


def test_rounding_does_not_make_it_negative() -> None:
    x = torch.ones(50, 3)
    assert (_variance(x, x[:5], 1e-6) >= 0.0).all()


def test_of_a_sample_left_out_is_that_from_the_others(draw64: Any) -> None:
    x, strength = draw64.normal(12, 3), torch.tensor(0.2, dtype=torch.float64)
    others = [torch.cat([x[:i], x[i + 1 :]]) for i in range(len(x))]
    expected = torch.cat([_variance(rest, x[i : i + 1], 0.2) for i, rest in enumerate(others)])
    found = ridge.left_out(kernels.rbf(x, x), draw64.normal(12, 2), strength)[1]
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("copies", [1, 3])
def test_what_the_others_predict_is_a_solution_without_the_sample_and_its_copies(draw64: Any, copies: int) -> None:
    x, y, strength = draw64.normal(12, 3), draw64.normal(12, 2), torch.tensor(0.2, dtype=torch.float64)
    found, _ = ridge.left_out(kernels.rbf(x, x), y, strength, copies)
    for i in range(12):
        rest = torch.arange(12) % (12 // copies) != i % (12 // copies)
        dual = ridge.dual_weights(kernels.rbf(x[rest], x[rest]), y[rest], strength)
        torch.testing.assert_close(found[i], (kernels.rbf(x[i : i + 1], x[rest]) @ dual)[0], rtol=1e-9, atol=1e-12)
