"""The contract of every kernel, and what random Fourier features owe to Bochner's theorem."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from jaxtyping import TypeCheckError
from torch import Tensor

from kcl.functional import kernels
from kcl.functional.gaussian import DiagonalGaussian
from kcl.functional.kernels import Kernel

FEATURES, BASES = 5, 7


def _dot(x: list[float], y: list[float]) -> float:
    return sum(a * b for a, b in zip(x, y, strict=True))


class Case(NamedTuple):
    """A kernel, and its formula for two samples, written out without tensors."""

    make: Callable[[Any], Kernel]
    formula: Callable[[list[float], list[float], Any], float]
    explicit: bool = False


def _frequencies(draw: Any) -> tuple[Tensor, Tensor]:
    return draw.normal(BASES, FEATURES), 2.0 * math.pi * draw.uniform(BASES)


def _fourier(x: list[float], y: list[float], draw: Any) -> float:
    frequencies, phases = (tensor.tolist() for tensor in _frequencies(draw))
    terms = (math.cos(_dot(w, x) + b) * math.cos(_dot(w, y) + b) for w, b in zip(frequencies, phases, strict=True))
    return 2.0 / BASES * sum(terms)


def _squared_distance(x: list[float], y: list[float]) -> float:
    return sum((a - b) ** 2 for a, b in zip(x, y, strict=True))


def _absolute_distance(x: list[float], y: list[float]) -> float:
    return sum(abs(a - b) for a, b in zip(x, y, strict=True))


CASES = {
    "linear": Case(lambda _: kernels.linear_kernel(), lambda x, y, _: _dot(x, y), explicit=True),
    "polynomial": Case(lambda _: kernels.polynomial_kernel(), lambda x, y, _: (_dot(x, y) + 1.0) ** 3),
    "polynomial of degree 2": Case(lambda _: kernels.polynomial_kernel(2), lambda x, y, _: (_dot(x, y) + 1.0) ** 2),
    "rbf": Case(lambda _: kernels.rbf_kernel(), lambda x, y, _: math.exp(-0.5 * _squared_distance(x, y))),
    "rbf of gamma 2": Case(lambda _: kernels.rbf_kernel(2.0), lambda x, y, _: math.exp(-2.0 * _squared_distance(x, y))),
    "laplacian": Case(lambda _: kernels.laplacian_kernel(), lambda x, y, _: math.exp(-0.25 * _absolute_distance(x, y))),
    "laplacian of gamma 1": Case(
        lambda _: kernels.laplacian_kernel(1.0), lambda x, y, _: math.exp(-_absolute_distance(x, y))
    ),
    "fourier": Case(lambda draw: kernels.fourier_kernel(*_frequencies(draw)), _fourier, explicit=True),
}


@pytest.mark.parametrize("name", CASES)
class TestEveryKernel:
    """What makes a function of two samples a kernel, and this code its formula."""

    @pytest.fixture
    def kernel(self, name: str, make_noise: Any) -> Kernel:
        return CASES[name].make(make_noise(1, torch.float64))

    def test_has_one_row_per_query_and_one_column_per_anchor(self, kernel: Kernel, draw64: Any) -> None:
        assert kernel(draw64.normal(3, FEATURES), draw64.normal(4, FEATURES)).shape == (3, 4)
        assert kernel(draw64.normal(1, FEATURES), draw64.normal(1, FEATURES)).shape == (1, 1)

    def test_is_symmetric(self, kernel: Kernel, draw64: Any) -> None:
        x, y = draw64.normal(6, FEATURES), draw64.normal(4, FEATURES)
        torch.testing.assert_close(kernel(x, y), kernel(y, x).mT, rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(kernel(x, x), kernel(x, x).mT, rtol=1e-12, atol=1e-12)

    @pytest.mark.parametrize("scale", [0.1, 1.0, 10.0])
    def test_is_positive_semi_definite(self, kernel: Kernel, draw64: Any, scale: float) -> None:
        points = scale * draw64.normal(25, FEATURES)
        x = torch.cat([points, points[:5], torch.zeros(2, FEATURES, dtype=torch.float64)])  # with repetitions
        eigenvalues = torch.linalg.eigvalsh(kernel(x, x))
        assert eigenvalues.min() >= -1e-12 * len(x) * eigenvalues.max()

    def test_equals_its_formula(self, name: str, kernel: Kernel, draw64: Any, make_noise: Any) -> None:
        x, y = draw64.normal(6, FEATURES), draw64.normal(4, FEATURES)
        y[0] = x[0]
        expected = [[CASES[name].formula(a, b, make_noise(1, torch.float64)) for b in y.tolist()] for a in x.tolist()]
        torch.testing.assert_close(kernel(x, y), torch.tensor(expected, dtype=torch.float64), rtol=1e-12, atol=1e-12)

    def test_keeps_single_precision(self, name: str, kernel: Kernel, draw64: Any, make_noise: Any) -> None:
        x, y = draw64.normal(6, FEATURES), draw64.normal(4, FEATURES)
        if name == "fourier":
            single = kernels.fourier_kernel(*(tensor.float() for tensor in _frequencies(make_noise(1, torch.float64))))
        else:
            single = kernel
        found = single(x.float(), y.float())
        assert found.dtype == torch.float32
        torch.testing.assert_close(found.double(), kernel(x, y), rtol=1e-5, atol=1e-5)

    def test_is_differentiable(self, kernel: Kernel, draw64: Any) -> None:
        x, y = draw64.normal(4, FEATURES).requires_grad_(), draw64.normal(3, FEATURES).requires_grad_()
        assert torch.autograd.gradcheck(kernel, (x, y))
        assert torch.autograd.gradcheck(lambda z: kernel(z, z), (x,))

    def test_has_a_finite_gradient_at_repeated_samples(self, kernel: Kernel, draw64: Any) -> None:
        x = draw64.normal(3, FEATURES)
        twice = torch.cat([x, x, torch.zeros(1, FEATURES, dtype=torch.float64)]).requires_grad_()
        kernel(twice, twice).sum().backward()
        assert twice.grad is not None
        assert torch.isfinite(twice.grad).all()

    def test_is_the_same_under_vmap(self, kernel: Kernel, draw64: Any) -> None:
        xs, ys = draw64.normal(3, 6, FEATURES), draw64.normal(3, 4, FEATURES)
        loop = torch.stack([kernel(x, y) for x, y in zip(xs, ys, strict=True)])
        torch.testing.assert_close(torch.func.vmap(kernel)(xs, ys), loop, rtol=1e-12, atol=1e-12)

    def test_compares_what_it_represents(self, name: str, kernel: Kernel, draw64: Any) -> None:
        x, y = draw64.normal(6, FEATURES), draw64.normal(4, FEATURES)
        represented = kernel.represent(x), kernel.represent(y)
        torch.testing.assert_close(kernel.compare(*represented), kernel(x, y))
        assert kernel.explicit == CASES[name].explicit
        if kernel.explicit:
            torch.testing.assert_close(represented[0] @ represented[1].mT, kernel(x, y))


@pytest.mark.parametrize("make", [kernels.rbf_kernel, kernels.laplacian_kernel])
def test_a_sample_is_most_like_itself(make: Callable[[], Kernel], draw64: Any) -> None:
    x = draw64.normal(20, FEATURES)
    gram = make()(x, x)
    torch.testing.assert_close(gram.diagonal(), torch.ones(20, dtype=torch.float64), rtol=0.0, atol=1e-12)
    assert (gram <= 1.0).all()
    assert (gram > 0.0).all()


def test_fourier_features_are_the_same_under_vmap_over_frequencies(draw64: Any) -> None:
    """Runs side by side have frequencies and phases of their own."""
    xs, frequencies, phases = draw64.normal(3, 6, FEATURES), draw64.normal(3, BASES, FEATURES), draw64.uniform(3, BASES)
    loop = torch.stack([kernels.fourier_features(*each) for each in zip(xs, frequencies, phases, strict=True)])
    found = torch.func.vmap(kernels.fourier_features)(xs, frequencies, phases)
    torch.testing.assert_close(found, loop, rtol=1e-12, atol=1e-12)


def test_fourier_features_are_differentiable_in_their_frequencies(draw64: Any) -> None:
    x, frequencies = draw64.normal(3, 4).requires_grad_(), draw64.normal(BASES, 4).requires_grad_()
    assert torch.autograd.gradcheck(kernels.fourier_features, (x, frequencies, draw64.uniform(BASES).requires_grad_()))


class TestBochner:
    """Random Fourier features with ω ~ N(0, I) stand for the RBF kernel with γ = 1/2 (Eq. 6 and 7)."""

    @staticmethod
    def _points(draw: Any) -> Tensor:
        """Features as the method uses them: not negative, of length one; distances from 0 to √2."""
        return torch.nn.functional.normalize(torch.relu(draw.normal(20, FEATURES)), dim=-1)

    @staticmethod
    def _gram(x: Tensor, bases: int, seed: int, make_noise: Any) -> Tensor:
        noise = make_noise(seed, torch.float64)
        return kernels.fourier_kernel(noise.normal(bases, x.shape[-1]), 2.0 * math.pi * noise.uniform(bases))(x, x)

    def test_the_mean_over_phases_is_the_cosine_of_the_difference(self, draw64: Any) -> None:
        """E_b[2 cos(ωx + b) cos(ωy + b)] = cos ω(x − y) for every ω: √(2/D) is the unbiased scale, √(1/D) is half.

        Equally spaced phases take the expectation over b exactly, so this holds to rounding.
        """
        x, frequency, count = draw64.normal(6, FEATURES), draw64.normal(1, FEATURES), 8
        phases = 2.0 * math.pi * torch.arange(count, dtype=torch.float64) / count
        gram = kernels.fourier_kernel(frequency.expand(count, -1), phases)(x, x)
        angles = (x @ frequency.mT).squeeze(-1)
        torch.testing.assert_close(gram, torch.cos(angles[:, None] - angles[None, :]), rtol=0.0, atol=1e-13)

    def test_the_mean_over_draws_is_the_rbf_kernel(self, draw64: Any, make_noise: Any) -> None:
        """Unbiased also at few features. The mean over R draws of D features is a mean over R·D terms, each of
        variance 1 + k(2δ)/2 − k(δ)² ≤ 3/2 (see below): five standard errors leave a false alarm in a million.
        """
        x, bases, repetitions = self._points(draw64), 4, 2000
        mean = torch.stack([self._gram(x, bases, seed, make_noise) for seed in range(repetitions)]).mean(0)
        error = (mean - kernels.rbf(x, x)).abs().max().item()
        assert error < 5.0 * math.sqrt(1.5 / (bases * repetitions))

    def test_the_error_falls_as_one_over_the_root_of_the_number_of_features(self, draw64: Any, make_noise: Any) -> None:
        """The slope of log error over log D is −1/2.

        The root-mean-square error of a D is taken over 20 seeds and 190 pairs. Were the pairs of a seed fully
        dependent, it would be uncertain by 1/√(2·20) = 16 %; over six D at factors of 4 this makes 0.027 in the slope.
        0.1 is almost four of these, and far from the slopes 0 (biased) and −1.
        """
        x = self._points(draw64)
        exact, pairs = kernels.rbf(x, x), torch.triu_indices(len(x), len(x), offset=1)
        counts, errors = [4, 16, 64, 256, 1024, 4096], []
        for bases in counts:
            off = torch.stack([self._gram(x, bases, seed, make_noise) - exact for seed in range(20)])
            errors.append(off[:, pairs[0], pairs[1]].square().mean().sqrt().item())
        slope = np.polyfit(np.log(counts), np.log(errors), 1)[0]
        assert slope == pytest.approx(-0.5, abs=0.1)

    def test_the_error_has_the_variance_of_its_terms(self, draw64: Any, make_noise: Any) -> None:
        """2 cos(ωx + b) cos(ωy + b) = cos ωδ + cos(ω(x + y) + 2b) has variance ½(1 + k(2δ)) + ½ − k(δ)².

        Checked for the mean over all pairs, to 20 %: with 20 seeds it is uncertain by √(2/20)/√(independent pairs),
        and 20 points in five dimensions have a dozen or more of these.
        """
        x, bases = self._points(draw64), 1024
        exact, doubled = kernels.rbf(x, x), kernels.rbf(2.0 * x, 2.0 * x)
        squared = torch.stack([(self._gram(x, bases, s, make_noise) - exact).square() for s in range(20)]).mean(0)
        pairs = torch.triu_indices(len(x), len(x), offset=1)
        expected = (1.0 + 0.5 * doubled - exact.square())[pairs[0], pairs[1]].mean() / bases
        assert squared[pairs[0], pairs[1]].mean().item() == pytest.approx(expected.item(), rel=0.2)


class TestShapes:
    """The annotated dimensions are checked while the tests run; these would pass silently without."""

    def test_features_must_agree(self, draw64: Any) -> None:
        with pytest.raises(TypeCheckError, match="linear"):
            kernels.linear(draw64.normal(3, 4), draw64.normal(3, 5))

    def test_whole_numbers_are_no_features(self) -> None:
        with pytest.raises(TypeCheckError, match="Float"):
            kernels.linear(torch.ones(3, 4, dtype=torch.int64), torch.ones(3, 4, dtype=torch.int64))

    def test_there_is_one_phase_per_frequency(self, draw64: Any) -> None:
        """One phase for all would broadcast."""
        with pytest.raises(TypeCheckError, match="phases"):
            kernels.fourier_features(draw64.normal(3, 4), draw64.normal(6, 4), draw64.uniform(1))


class TestVariationalFeatures:
    """ψ with frequencies drawn from a Gaussian, which are never formed."""

    def test_are_the_fourier_features_of_the_frequencies_drawn(self, draw64: Any) -> None:
        q = DiagonalGaussian(draw64.normal(3), draw64.normal(3))
        x, noise, phases = draw64.normal(7, 3), draw64.normal(11, 3), draw64.uniform(11)
        frequencies = torch.stack([q.mean + row * torch.sqrt(torch.exp(q.log_variance)) for row in noise])
        found = kernels.variational_features(x, q, noise, phases)
        torch.testing.assert_close(found, kernels.fourier_features(x, frequencies, phases))
        kernel = kernels.variational_kernel(q, noise, phases)
        assert kernel.explicit
        torch.testing.assert_close(kernel(x, x[:4]), found @ found[:4].T)

    def test_have_the_right_gradient(self, draw64: Any) -> None:
        noise, phases = draw64.normal(5, 3), draw64.uniform(5)

        def features(x: torch.Tensor, mean: torch.Tensor, log_variance: torch.Tensor) -> torch.Tensor:
            return kernels.variational_features(x, DiagonalGaussian(mean, log_variance), noise, phases)

        inputs = (draw64.normal(4, 3), draw64.normal(3), draw64.normal(3))
        assert torch.autograd.gradcheck(features, tuple(tensor.requires_grad_() for tensor in inputs))
