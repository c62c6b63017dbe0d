"""Factorise and solve, where there is no GPU: against a general solve in double precision."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from kcl.ops import cholesky


def _systems(draw: Any, runs: tuple[int, ...], size: int, classes: int) -> tuple[Tensor, Tensor, Tensor]:
    """Gram matrices of few features, so that nothing but λ makes them positive definite; targets; strengths."""
    features = draw.normal(*runs, size, max(1, size // 2))
    return features @ features.mT, draw.normal(*runs, size, classes), 0.1 + draw.uniform(*runs)


def _general(gram: Tensor, targets: Tensor, strength: Tensor) -> Tensor:
    """(K + λI)⁻¹ Y by LU in double precision, one run after another."""
    size, classes = targets.shape[-2:]
    parts = zip(gram.reshape(-1, size, size), targets.reshape(-1, size, classes), strength.flatten(), strict=True)
    identity = torch.eye(size, dtype=torch.float64)
    solved = [torch.linalg.solve(k.double() + s.double() * identity, y.double()) for k, y, s in parts]
    return torch.stack(solved).view(targets.shape)


@pytest.mark.parametrize("runs", [(), (1,), (4,)], ids=str)
@pytest.mark.parametrize(("size", "classes"), [(1, 1), (2, 3), (15, 5), (16, 16), (17, 17), (60, 10), (300, 2)])
class TestFallback:
    def test_equals_a_general_solve(self, draw64: Any, runs: tuple[int, ...], size: int, classes: int) -> None:
        gram, targets, strength = _systems(draw64, runs, size, classes)
        solved, _ = cholesky.factorise_and_solve(gram, targets, strength)
        torch.testing.assert_close(solved, _general(gram, targets, strength), rtol=1e-9, atol=1e-9)

    def test_equals_it_in_single_precision(self, draw: Any, runs: tuple[int, ...], size: int, classes: int) -> None:
        """The error of a backward stable solve: a few units of rounding times the condition number."""
        gram, targets, strength = _systems(draw, runs, size, classes)
        solved, factor = cholesky.factorise_and_solve(gram, targets, strength)
        expected = _general(gram, targets, strength)
        assert solved.dtype == factor.dtype == torch.float32
        eigenvalues = torch.linalg.eigvalsh(gram.double())[..., -1] + strength
        allowed = 4.0 * size**0.5 * 2.0**-24 * (eigenvalues / strength).max() * expected.abs().max()
        assert (solved - expected).abs().max() <= allowed

    def test_the_factor_solves_other_targets(self, draw64: Any, runs: tuple[int, ...], size: int, classes: int) -> None:
        gram, targets, strength = _systems(draw64, runs, size, classes)
        _, factor = cholesky.factorise_and_solve(gram, targets, strength)
        others = draw64.normal(*runs, size, classes + 2)
        solved = cholesky.solve(factor, others)
        torch.testing.assert_close(solved, _general(gram, others, strength), rtol=1e-9, atol=1e-9)

    def test_leaves_its_arguments_alone(self, draw64: Any, runs: tuple[int, ...], size: int, classes: int) -> None:
        given = _systems(draw64, runs, size, classes)
        copies = [tensor.clone() for tensor in given]
        cholesky.factorise_and_solve(*given)
        assert all(torch.equal(tensor, copy) for tensor, copy in zip(given, copies, strict=True))


@pytest.mark.parametrize("flaw", ["negative", "nan", "singular"])
def test_a_matrix_that_is_not_positive_definite_spoils_its_own_run_only(draw: Any, flaw: str) -> None:
    gram, targets, strength = _systems(draw, (3,), 12, 4)
    expected = cholesky.factorise_and_solve(gram, targets, strength)[0]
    if flaw == "negative":
        gram[1] = -gram[1]
    elif flaw == "nan":
        gram[1, 5, 5] = torch.nan
    else:
        gram[1], strength[1] = 1.0, 0.0
    solved, factor = cholesky.factorise_and_solve(gram, targets, strength)
    assert not solved[1].isfinite().any()
    assert not cholesky.solve(factor, targets)[1].isfinite().any()
    assert torch.equal(solved[::2], expected[::2])


@pytest.mark.parametrize(("size", "side"), [(1, 16), (16, 16), (17, 32), (200, 208), (256, 256)])
def test_the_operators_can_be_traced_without_a_gpu(size: int, side: int) -> None:
    """The GPU's factor is padded to whole blocks of sixteen; the solution is not."""
    with FakeTensorMode():
        targets = torch.empty(3, size, 5)
        solved, factor = torch.ops.kcl.factorise_and_solve(torch.empty(3, size, size), targets, torch.empty(3))
        assert (solved.shape, factor.shape) == ((3, size, 5), (3, side, side))
        assert torch.ops.kcl.solve(factor, targets).shape == (3, size, 5)


@pytest.mark.parametrize("runs", [(), (3,)], ids=str)
@pytest.mark.parametrize(("size", "head"), [(5, 4), (8, 4), (9, 4), (33, 16), (60, 16)])
def test_a_matrix_taken_apart_is_solved_as_a_whole(draw64: Any, runs: tuple[int, ...], size: int, head: int) -> None:
    """What a GPU does with matrices too large for its kernel, and other targets with what that leaves."""
    gram, targets, strength = _systems(draw64, runs, size, 3)
    solved, packed = cholesky.eliminate(gram, targets, strength, head)
    torch.testing.assert_close(solved, _general(gram, targets, strength), rtol=1e-8, atol=1e-8)
    others = draw64.normal(*runs, size, 5)
    found = cholesky.solve_eliminated(packed, others, head)
    torch.testing.assert_close(found, _general(gram, others, strength), rtol=1e-8, atol=1e-8)
