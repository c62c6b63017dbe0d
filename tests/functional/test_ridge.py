"""Kernel ridge regression against scikit-learn, the primal solution, autograd and double precision."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from kcl.functional import kernels, ridge

SIZES = [1, 2, 10, 50, 200, 500]
FEATURES, BASES, CLASSES = 64, 256, 10


def _scalar(value: float) -> Tensor:
    return torch.tensor(value, dtype=torch.float64)


class TestDualWeights:
    @pytest.mark.parametrize("strength", [0.01, 0.11, 10.0])
    @pytest.mark.parametrize("size", [1, 7, 60])
    def test_equal_scikit_learn(self, draw64: Any, size: int, strength: float) -> None:
        kernel_ridge = pytest.importorskip("sklearn.kernel_ridge")
        x, targets, queries = draw64.normal(size, 5), draw64.normal(size, 3), draw64.normal(9, 5)
        model = kernel_ridge.KernelRidge(alpha=strength, kernel="rbf", gamma=0.5).fit(x.numpy(), targets.numpy())
        weights = ridge.dual_weights(kernels.rbf(x, x), targets, _scalar(strength))
        torch.testing.assert_close(weights, torch.from_numpy(model.dual_coef_), rtol=1e-8, atol=1e-10)
        found = kernels.rbf(queries, x) @ weights
        torch.testing.assert_close(found, torch.from_numpy(model.predict(queries.numpy())), rtol=1e-8, atol=1e-10)

    def test_do_not_depend_on_the_order_of_the_coreset(self, draw64: Any) -> None:
        x, targets, order = draw64.normal(12, 5), draw64.normal(12, 3), [7, 3, 11, 0, 5, 1, 9, 2, 10, 4, 8, 6]
        weights = ridge.dual_weights(kernels.rbf(x, x), targets, _scalar(0.1))
        shuffled = ridge.dual_weights(kernels.rbf(x[order], x[order]), targets[order], _scalar(0.1))
        torch.testing.assert_close(shuffled, weights[order], rtol=1e-10, atol=1e-12)

    @pytest.mark.parametrize(
        "gram",
        [
            [[-1.0, 0.0], [0.0, -1.0]],
            [[1.0, 2.0], [2.0, 1.0]],
            [[math.nan, 0.0], [0.0, 1.0]],
            [[1.0, 0.0, 0.0], [0.0, 1.0, 3.0], [0.0, 3.0, 1.0]],
        ],
    )
    def test_are_not_finite_where_the_matrix_is_not_positive_definite(self, gram: list[list[float]]) -> None:
        """As documented: plausible numbers from half a factorisation would be learned from in silence."""
        targets = torch.eye(len(gram))
        weights = ridge.dual_weights(torch.tensor(gram), targets, torch.tensor(0.01))
        assert not torch.isfinite(weights).all()

    def test_one_matrix_of_several_that_is_not_positive_definite_spoils_no_other(self) -> None:
        gram, targets = torch.stack([torch.eye(2), -torch.eye(2), torch.eye(2)]), torch.eye(2).expand(3, 2, 2)
        weights = ridge.dual_weights(gram, targets, torch.full((3,), 0.01))
        torch.testing.assert_close(weights[[0, 2]], torch.eye(2).expand(2, 2, 2) / 1.01)
        assert not torch.isfinite(weights[1]).all()


class TestPrimalWeights:
    @pytest.mark.parametrize(("samples", "features"), [(20, 5), (5, 20), (1, 3)])
    def test_are_the_primal_solution(self, draw64: Any, samples: int, features: int) -> None:
        """(ΨᵀΨ + λI)⁻¹ΨᵀY = Ψᵀ(ΨΨᵀ + λI)⁻¹Y, whichever side has more rows; and so for every prediction."""
        psi, targets, queries, strength = (
            draw64.normal(samples, features),
            draw64.normal(samples, 3),
            draw64.normal(8, features),
            0.3,
        )
        shifted = psi.mT @ psi + strength * torch.eye(features, dtype=torch.float64)
        weights = ridge.primal_weights(psi, targets, _scalar(strength))
        torch.testing.assert_close(weights, torch.linalg.solve(shifted, psi.mT @ targets), rtol=1e-9, atol=1e-12)
        dual = ridge.dual_weights(psi @ psi.mT, targets, _scalar(strength))
        torch.testing.assert_close(queries @ weights, (queries @ psi.mT) @ dual, rtol=1e-9, atol=1e-12)

    def test_equal_scikit_learn(self, draw64: Any) -> None:
        """Linear kernel ridge regression is ridge regression."""
        linear_model = pytest.importorskip("sklearn.linear_model")
        psi, targets = draw64.normal(30, 5), draw64.normal(30, 3)
        model = linear_model.Ridge(alpha=0.11, fit_intercept=False).fit(psi.numpy(), targets.numpy())
        found = ridge.primal_weights(psi, targets, _scalar(0.11))
        torch.testing.assert_close(found, torch.from_numpy(model.coef_.T.copy()), rtol=1e-8, atol=1e-10)

    def test_minimise_the_objective(self, draw64: Any) -> None:
        """Eq. 1, with the square the paper's print misses: ½ Σ‖y − w·ψ(x)‖² + ½ λ‖w‖² is flat at w."""
        psi, targets, strength = draw64.normal(12, 5), draw64.normal(12, 3), 0.3
        weights = ridge.primal_weights(psi, targets, _scalar(strength)).requires_grad_()
        objective = 0.5 * (targets - psi @ weights).square().sum() + 0.5 * strength * weights.square().sum()
        (slope,) = torch.autograd.grad(objective, weights)
        torch.testing.assert_close(slope, torch.zeros_like(slope), rtol=0.0, atol=1e-12)


Solve = Callable[[Tensor, Tensor, Tensor], Tensor]


def _dual(z: Tensor, targets: Tensor, strength: Tensor) -> Tensor:
    """K = ZZᵀ keeps the matrix symmetric whatever is varied."""
    return ridge.dual_weights(z @ z.mT, targets, strength)


def _general(z: Tensor, targets: Tensor, strength: Tensor) -> Tensor:
    """The same by a solve that knows nothing of symmetry, differentiated by autograd."""
    return torch.linalg.solve(z @ z.mT + strength * torch.eye(len(z), dtype=z.dtype), targets)


def _queries(z: Tensor) -> Tensor:
    return torch.cat([0.5 * z.flip(-2), z[..., :1, :].sin()], dim=-2)


def _scores(z: Tensor, targets: Tensor, strength: Tensor) -> Tensor:
    return ridge.query_scores(torch.cat([z, _queries(z)], dim=-2), targets, strength)


def _traced_scores(z: Tensor, targets: Tensor, strength: Tensor) -> Tensor:
    """As in a step that is being traced on a CPU."""
    return ridge.query_scores.backends[0].run(torch.cat([z, _queries(z)], dim=-2), targets, strength)


REFERENCES: dict[Solve, Solve] = {
    _dual: _general,
    ridge.primal_weights: lambda z, y, s: z.mT @ _general(z, y, s),
    _scores: lambda z, y, s: _queries(z) @ z.mT @ _general(z, y, s),
    _traced_scores: lambda z, y, s: _queries(z) @ z.mT @ _general(z, y, s),
}


@pytest.mark.parametrize("solve", REFERENCES, ids=["dual", "primal", "scores", "traced scores"])
class TestAll:
    """Gradients and stacked runs, for α, for W and for what they answer."""

    @pytest.mark.parametrize(("samples", "features"), [(1, 1), (5, 3), (3, 5)])
    def test_the_gradient_equals_finite_differences(
        self, draw64: Any, solve: Solve, samples: int, features: int
    ) -> None:
        z, targets = draw64.normal(samples, features).requires_grad_(), draw64.normal(samples, 2).requires_grad_()
        assert torch.autograd.gradcheck(solve, (z, targets, _scalar(0.2).requires_grad_()))

    def test_the_gradient_equals_finite_differences_for_many_runs_at_once(self, draw64: Any, solve: Solve) -> None:
        inputs = draw64.normal(3, 4, 2), draw64.normal(3, 4, 2), draw64.uniform(3) + 0.1
        assert torch.autograd.gradcheck(solve, tuple(value.requires_grad_() for value in inputs))

    @pytest.mark.parametrize("which", [0, 1, 2])
    def test_the_gradient_of_one_input_needs_no_other(self, draw64: Any, solve: Solve, which: int) -> None:
        inputs = [draw64.normal(4, 3), draw64.normal(4, 2), _scalar(0.2)]
        inputs[which].requires_grad_()
        assert torch.autograd.gradcheck(solve, tuple(inputs))

    def test_the_gradient_equals_autograd_through_a_general_solve(self, draw64: Any, solve: Solve) -> None:
        inputs = tuple(value.requires_grad_() for value in (draw64.normal(9, 4), draw64.normal(9, 3), _scalar(0.05)))
        found, expected = solve(*inputs), REFERENCES[solve](*inputs)
        torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-10)
        outward = draw64.normal(*expected.shape)
        slopes = [torch.autograd.grad(value, inputs, outward) for value in (found, expected)]
        torch.testing.assert_close(*slopes, rtol=1e-9, atol=1e-10)

    def test_many_runs_are_solved_at_once(self, draw64: Any, solve: Solve) -> None:
        z, targets, strength = draw64.normal(4, 6, 5), draw64.normal(4, 6, 3), draw64.uniform(4) + 0.01
        loop = [solve(*each) for each in zip(z, targets, strength, strict=True)]
        torch.testing.assert_close(solve(z, targets, strength), torch.stack(loop), rtol=1e-10, atol=1e-10)

    def test_is_the_same_under_vmap(self, draw64: Any, solve: Solve) -> None:
        """Gradients included, and with what the runs share given once."""
        inputs = tuple(
            x.requires_grad_() for x in (draw64.normal(4, 6, 5), draw64.normal(6, 3), draw64.uniform(4) + 0.1)
        )
        z, targets, strength = inputs
        mapped = torch.func.vmap(solve, in_dims=(0, None, 0))(z, targets, strength)
        loop = torch.stack([solve(a, targets, b) for a, b in zip(z, strength, strict=True)])
        torch.testing.assert_close(mapped, loop, rtol=1e-10, atol=1e-10)
        outward = draw64.normal(*loop.shape)
        slopes = [torch.autograd.grad(value, inputs, outward) for value in (mapped, loop)]
        torch.testing.assert_close(*slopes, rtol=1e-10, atol=1e-10)


def _represent(name: str, x: Tensor, noise: Any) -> Tensor:
    frequencies, phases = noise.normal(BASES, FEATURES).to(x.dtype), 2.0 * math.pi * noise.uniform(BASES).to(x.dtype)
    return kernels.fourier_features(x, frequencies, phases) if name == "fourier" else x


class TestSinglePrecision:
    """float32 against float64 on features as the method makes them: not negative, half of them zero, of length one.

    Every third sample of the coreset is a copy of another, half of the copies with another label: K alone is singular.

    The bound comes from the standard error analysis of a solve: relative error ≤ c · u · κ, with u = 2⁻²⁴ and
    κ ≤ (tr K + λ)/λ, the worst condition number a Gram matrix of this trace can have with this λ; 8u more is for the
    kernel values themselves. Rounding errors mostly cancel: c = 1 holds for the scores with room, measured at 0.4 or
    less, and so does 2 for their gradient, which is two solves. At worst (500 samples, λ = 0.01) this is 0.3 % of the
    scores, 2.4 % for the polynomial kernel, whose trace is eight times larger; 0.03 % and 0.1 % were measured.
    """

    @staticmethod
    def _problem(size: int, make_noise: Any) -> tuple[Tensor, Tensor, Tensor]:
        draw = make_noise(size)
        count = size + 20
        features = F.normalize(torch.relu(draw.normal(count, FEATURES) + 0.3 * draw.normal(1, FEATURES)), dim=-1)
        labels = (draw.uniform(count) * CLASSES).long()
        copies = torch.arange(size)[2::3]
        features[copies] = features[copies - 1]
        labels[copies[::2]] = labels[copies[::2] - 1]
        return features[:size], F.one_hot(labels[:size], CLASSES).float(), features[size:]

    @staticmethod
    def _bound(gram: Tensor, strength: float) -> float:
        return 2.0**-24 * (8.0 + (gram.trace().item() + strength) / strength)

    @staticmethod
    def _apart(found: Tensor, expected: Tensor) -> float:
        return ((found.double() - expected).norm() / expected.norm()).item()

    @pytest.mark.parametrize("strength", [0.01, 0.11, 1.0])
    @pytest.mark.parametrize("size", SIZES)
    @pytest.mark.parametrize(
        ("name", "collapsed"),
        [
            ("linear", False),
            ("linear", True),
            ("fourier", False),
            ("fourier", True),
            ("polynomial", False),
            ("rbf", False),
            ("laplacian", False),
        ],
    )
    def test_agrees_with_double(self, make_noise: Any, name: str, collapsed: bool, size: int, strength: float) -> None:
        coreset, targets, queries = self._problem(size, make_noise)

        def answer(dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
            compare = kernels.linear if name == "fourier" else getattr(kernels, name)
            c = coreset.to(dtype).requires_grad_()
            anchors, q = _represent(name, c, make_noise(1)), _represent(name, queries.to(dtype), make_noise(1))
            gram = compare(anchors, anchors)
            y, lam = targets.to(dtype), torch.tensor(strength, dtype=dtype)
            if collapsed:
                scores = q @ ridge.primal_weights(anchors, y, lam)
            else:
                scores = compare(q, anchors) @ ridge.dual_weights(gram, y, lam)
            (slope,) = torch.autograd.grad(F.cross_entropy(scores, torch.arange(len(q)) % CLASSES), c)
            return gram.detach(), scores.detach(), slope

        gram, expected, expected_slope = answer(torch.float64)
        _, scores, slope = answer(torch.float32)
        bound = self._bound(gram, strength)
        assert self._apart(scores, expected) < bound
        assert self._apart(slope, expected_slope) < 2.0 * bound
