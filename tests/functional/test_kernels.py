"""Properties that every kernel must have, and random Fourier features against Bochner's theorem."""

from __future__ import annotations

import math
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from jaxtyping import TypeCheckError
from torch import Tensor

from kcl.functional import kernels
from kcl.functional.gaussian import DiagonalGaussian
from kcl.methods.kcl_settings import KclSettings
from kcl.methods.ridge_kernels import KERNELS, Kernel

FEATURES, BASES = 5, 7


def _dot(x: list[float], y: list[float]) -> float:
    return sum(a * b for a, b in zip(x, y, strict=True))


class ModelKernel(NamedTuple):
    """A kernel object together with the tensors it reads from the model, as a function of two sets of samples."""

    kernel: Kernel
    model: Any

    def represent(self, x: Tensor) -> Tensor:
        return self.kernel.represent(self.model, x, None, None)  # type: ignore[arg-type]

    def __call__(self, x: Tensor, y: Tensor) -> Tensor:
        return self.kernel.compare(self.model, self.represent(x), self.represent(y))


class Case(NamedTuple):
    """A kernel by name and settings, and its formula for two samples, written out without tensors."""

    name: str
    settings: dict[str, Any]
    formula: Callable[[list[float], list[float], Any], float]
    explicit: bool = False

    def make(self, draw: Any, dtype: torch.dtype = torch.float64) -> ModelKernel:
        kernel = KERNELS[self.name](KclSettings(kernel=self.name, **self.settings))
        numbers = {name: torch.tensor(value, dtype=dtype) for name, value in kernel.numbers().items()}
        frequencies, phases = (tensor.to(dtype) for tensor in _frequencies(draw))
        return ModelKernel(kernel, SimpleNamespace(frequencies=frequencies, phases=phases, **numbers))


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
    "linear": Case("linear", {}, lambda x, y, _: _dot(x, y), explicit=True),
    "polynomial": Case("polynomial", {}, lambda x, y, _: (_dot(x, y) + 1.0) ** 3),
    "polynomial of degree 2": Case("polynomial", {"polynomial_degree": 2}, lambda x, y, _: (_dot(x, y) + 1.0) ** 2),
    "rbf": Case("rbf", {}, lambda x, y, _: math.exp(-0.5 * _squared_distance(x, y))),
    "rbf of gamma 2": Case("rbf", {"rbf_gamma": 2.0}, lambda x, y, _: math.exp(-2.0 * _squared_distance(x, y))),
    "laplacian": Case("laplacian", {}, lambda x, y, _: math.exp(-0.25 * _absolute_distance(x, y))),
    "laplacian of gamma 1": Case(
        "laplacian", {"laplacian_gamma": 1.0}, lambda x, y, _: math.exp(-_absolute_distance(x, y))
    ),
    "fourier": Case("rff", {"bases": BASES}, _fourier, explicit=True),
}


@pytest.mark.parametrize("name", CASES)
class TestEveryKernel:
    """What makes a function of two samples a kernel, and this code its formula."""

    @pytest.fixture
    def kernel(self, name: str, make_noise: Any) -> ModelKernel:
        return CASES[name].make(make_noise(1, torch.float64))

    def test_has_one_row_per_query_and_one_column_per_anchor(self, kernel: ModelKernel, draw64: Any) -> None:
        assert kernel(draw64.normal(3, FEATURES), draw64.normal(4, FEATURES)).shape == (3, 4)
        assert kernel(draw64.normal(1, FEATURES), draw64.normal(1, FEATURES)).shape == (1, 1)

    def test_is_symmetric(self, kernel: ModelKernel, draw64: Any) -> None:
        x, y = draw64.normal(6, FEATURES), draw64.normal(4, FEATURES)
        torch.testing.assert_close(kernel(x, y), kernel(y, x).mT, rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(kernel(x, x), kernel(x, x).mT, rtol=1e-12, atol=1e-12)

    @pytest.mark.parametrize("scale", [0.1, 1.0, 10.0])
    def test_is_positive_semi_definite(self, kernel: ModelKernel, draw64: Any, scale: float) -> None:
        points = scale * draw64.normal(25, FEATURES)
        x = torch.cat([points, points[:5], torch.zeros(2, FEATURES, dtype=torch.float64)])  # with repetitions
        eigenvalues = torch.linalg.eigvalsh(kernel(x, x))
        assert eigenvalues.min() >= -1e-12 * len(x) * eigenvalues.max()

    def test_equals_its_formula(self, name: str, kernel: ModelKernel, draw64: Any, make_noise: Any) -> None:
        x, y = draw64.normal(6, FEATURES), draw64.normal(4, FEATURES)
        y[0] = x[0]
        expected = [[CASES[name].formula(a, b, make_noise(1, torch.float64)) for b in y.tolist()] for a in x.tolist()]
        torch.testing.assert_close(kernel(x, y), torch.tensor(expected, dtype=torch.float64), rtol=1e-12, atol=1e-12)

    def test_keeps_single_precision(self, name: str, kernel: ModelKernel, draw64: Any, make_noise: Any) -> None:
        x, y = draw64.normal(6, FEATURES), draw64.normal(4, FEATURES)
        single = CASES[name].make(make_noise(1, torch.float64), torch.float32)
        gram = single(x.float(), y.float())
        assert gram.dtype == torch.float32
        torch.testing.assert_close(gram.double(), kernel(x, y), rtol=1e-5, atol=1e-5)

    def test_is_differentiable(self, kernel: ModelKernel, draw64: Any) -> None:
        x, y = draw64.normal(4, FEATURES).requires_grad_(), draw64.normal(3, FEATURES).requires_grad_()
        assert torch.autograd.gradcheck(kernel, (x, y))
        assert torch.autograd.gradcheck(lambda z: kernel(z, z), (x,))

    def test_has_a_finite_gradient_at_repeated_samples(self, kernel: ModelKernel, draw64: Any) -> None:
        x = draw64.normal(3, FEATURES)
        twice = torch.cat([x, x, torch.zeros(1, FEATURES, dtype=torch.float64)]).requires_grad_()
        kernel(twice, twice).sum().backward()
        assert twice.grad is not None
        assert torch.isfinite(twice.grad).all()

    def test_is_the_same_under_vmap(self, kernel: ModelKernel, draw64: Any) -> None:
        xs, ys = draw64.normal(3, 6, FEATURES), draw64.normal(3, 4, FEATURES)
        loop = torch.stack([kernel(x, y) for x, y in zip(xs, ys, strict=True)])
        torch.testing.assert_close(torch.func.vmap(kernel)(xs, ys), loop, rtol=1e-12, atol=1e-12)

    def test_is_an_inner_product_of_representations_where_it_says_so(
        self, name: str, kernel: ModelKernel, draw64: Any
    ) -> None:
        x, y = draw64.normal(6, FEATURES), draw64.normal(4, FEATURES)
        assert kernel.kernel.explicit == CASES[name].explicit
        if kernel.kernel.explicit:
            torch.testing.assert_close(kernel.represent(x) @ kernel.represent(y).mT, kernel(x, y))

    def test_knows_the_diagonal_of_its_gram_matrix(self, kernel: ModelKernel, draw64: Any) -> None:
        x = draw64.normal(6, FEATURES)
        diagonal = kernel.kernel.diagonal(kernel.model, kernel.represent(x))
        torch.testing.assert_close(diagonal, kernel(x, x).diagonal(), rtol=1e-12, atol=1e-12)

    def test_compares_in_onnx_as_elsewhere(self, kernel: ModelKernel, draw64: Any) -> None:
        x, y = kernel.represent(draw64.normal(6, FEATURES)), kernel.represent(draw64.normal(4, FEATURES))
        exported = kernel.kernel.compare_in_onnx(kernel.model, x, y)
        torch.testing.assert_close(exported, kernel.kernel.compare(kernel.model, x, y), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("kernel", [kernels.rbf, kernels.laplacian])
def test_a_sample_is_most_like_itself(kernel: Callable[[Tensor, Tensor], Tensor], draw64: Any) -> None:
    x = draw64.normal(20, FEATURES)
    gram = kernel(x, x)
    torch.testing.assert_close(gram.diagonal(), torch.ones(20, dtype=torch.float64), rtol=0.0, atol=1e-12)
    assert (gram <= 1.0).all()
    assert (gram > 0.0).all()


def test_fourier_features_are_the_same_under_vmap_over_frequencies(draw64: Any) -> None:
    """Runs side by side have frequencies and phases of their own."""
    xs, frequencies, phases = draw64.normal(3, 6, FEATURES), draw64.normal(3, BASES, FEATURES), draw64.uniform(3, BASES)
    loop = torch.stack([kernels.fourier_features(*each) for each in zip(xs, frequencies, phases, strict=True)])
    mapped = torch.func.vmap(kernels.fourier_features)(xs, frequencies, phases)
    torch.testing.assert_close(mapped, loop, rtol=1e-12, atol=1e-12)


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
        frequencies, phases = noise.normal(bases, x.shape[-1]), 2.0 * math.pi * noise.uniform(bases)
        features = kernels.fourier_features(x, frequencies, phases)
        return features @ features.mT

    def test_the_mean_over_phases_is_the_cosine_of_the_difference(self, draw64: Any) -> None:
        """E_b[2 cos(ωx + b) cos(ωy + b)] = cos ω(x − y) for every ω: √(2/D) is the unbiased scale, √(1/D) is half.

        Equally spaced phases take the expectation over b exactly, so this holds to rounding.
        """
        x, frequency, count = draw64.normal(6, FEATURES), draw64.normal(1, FEATURES), 8
        phases = 2.0 * math.pi * torch.arange(count, dtype=torch.float64) / count
        features = kernels.fourier_features(x, frequency.expand(count, -1), phases)
        angles = (x @ frequency.mT).squeeze(-1)
        torch.testing.assert_close(
            features @ features.mT, torch.cos(angles[:, None] - angles[None, :]), rtol=0.0, atol=1e-13
        )

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
        features = kernels.variational_features(x, q, noise, phases)
        torch.testing.assert_close(features, kernels.fourier_features(x, frequencies, phases))
        torch.testing.assert_close(kernels.reparameterised(q, noise), frequencies)

    def test_have_the_right_gradient(self, draw64: Any) -> None:
        noise, phases = draw64.normal(5, 3), draw64.uniform(5)

        def features(x: torch.Tensor, mean: torch.Tensor, log_variance: torch.Tensor) -> torch.Tensor:
            return kernels.variational_features(x, DiagonalGaussian(mean, log_variance), noise, phases)

        inputs = (draw64.normal(4, 3), draw64.normal(3), draw64.normal(3))
        assert torch.autograd.gradcheck(features, tuple(tensor.requires_grad_() for tensor in inputs))
