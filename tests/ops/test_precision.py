"""Which products may be rounded: the flags are put back whatever happens, and the exact products are plain ones."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from kcl.ops import gram, inner, linear
from kcl.ops.precision import PRECISIONS, Inner, activations, at_test, products, used


def _flags() -> tuple[bool, bool]:
    return torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32


@pytest.fixture(params=[(False, False), (False, True), (True, False), (True, True)], ids=str)
def before(request: pytest.FixtureRequest) -> Iterator[tuple[bool, bool]]:
    """Every state the flags may be found in."""
    found = _flags()
    torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = request.param
    yield request.param
    torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = found


@pytest.mark.parametrize("precision", PRECISIONS)
class TestProducts:
    def test_sets_both_flags_and_puts_them_back(self, before: tuple[bool, bool], precision: str) -> None:
        with products(precision):
            assert _flags() == (precision != "float32",) * 2
            assert activations() == (torch.bfloat16 if precision == "bf16" else torch.float32)
        assert _flags() == before
        assert activations() == torch.float32

    def test_puts_them_back_after_an_exception(self, before: tuple[bool, bool], precision: str) -> None:
        with pytest.raises(KeyboardInterrupt), products(precision):
            raise KeyboardInterrupt
        assert _flags() == before
        assert activations() == torch.float32

    def test_may_stand_inside_itself(self, before: tuple[bool, bool], precision: str) -> None:
        with products("bf16"):
            with products(precision):
                assert _flags() == (precision != "float32",) * 2
            assert _flags() == (True, True)
            assert activations() == torch.bfloat16
        assert _flags() == before


class TestLinear:
    """x Wᵀ + b on a CPU."""

    def _given(self, draw: Any) -> list[torch.Tensor]:
        return [draw.normal(*shape).requires_grad_() for shape in ((5, 40), (7, 40), (7,))]

    @pytest.mark.parametrize("precision", ["float32", "tf32"])
    def test_is_pytorch_s_to_the_bit_unless_bf16_is_allowed(self, draw: Any, precision: str) -> None:
        given = self._given(draw)
        with products(precision):
            assert torch.equal(linear(*given), torch.nn.functional.linear(*given))

    def test_multiplies_what_is_rounded_to_bfloat16(self, draw: Any) -> None:
        """The product and both gradients are those of rounded numbers, and are rounded themselves."""
        x, weight, bias = given = self._given(draw)
        upper = draw.normal(5, 7)
        with products("bf16"):
            out = linear(*given)
            found = torch.autograd.grad(out, given, upper)
        assert {tensor.dtype for tensor in (out, *found)} == {torch.float32}

        def rounded(tensor: torch.Tensor) -> torch.Tensor:
            return tensor.detach().bfloat16().double()

        last_bit = {"rtol": 2.0**-7, "atol": 1e-5}
        product = rounded(x) @ rounded(weight).T
        torch.testing.assert_close((out - bias).double(), product, **last_bit)
        assert (out - bias - x @ weight.T).abs().max() > 1e-3  # or nothing was rounded
        torch.testing.assert_close(found[0].double(), rounded(upper) @ rounded(weight), **last_bit)
        torch.testing.assert_close(found[1].double(), rounded(upper).T @ rounded(x), **last_bit)
        torch.testing.assert_close(found[2], upper.sum(0))

    def test_the_gram_matrix_and_what_kernels_compare_by_stay_exact(self, draw: Any) -> None:
        features = draw.normal(20, 40)
        with products("bf16"):
            found = gram(features), inner(features, features)
        assert torch.equal(found[0], gram(features))
        assert torch.equal(found[1], inner(features, features))


def test_what_comes_to_pass_of_a_precision() -> None:
    cpu, gpu = torch.device("cpu"), torch.device("cuda")
    for compiled in (None, False, True):
        assert [used(own, gpu, compiled) for own in PRECISIONS] == list(PRECISIONS)
        in_half = "bf16" if compiled else "float32"
        assert [used(own, cpu, compiled) for own in PRECISIONS] == ["float32", "float32", in_half]
    assert [at_test(own) for own in PRECISIONS] == ["float32", "tf32", "tf32"]


class TestGram:
    @pytest.mark.parametrize("shape", [(1, 1), (5, 3), (3, 7, 4), (2, 3, 4, 2)], ids=str)
    def test_is_the_plain_product(self, draw: Any, shape: tuple[int, ...]) -> None:
        features = draw.normal(*shape)
        expected = torch.einsum("...md,...nd->...mn", features.double(), features.double())
        torch.testing.assert_close(gram(features).double(), expected, rtol=1e-5, atol=1e-5)

    def test_as_an_operator_it_gives_the_same_and_leaves_the_flags(self, draw: Any) -> None:
        """The operator a GPU uses can be called, and traced without being computed, anywhere."""
        features = draw.normal(3, 7, 4)
        with products("float32"):
            assert torch.equal(torch.ops.kcl.gram(features), gram(features))
            assert _flags() == (False, False)
            traced = make_fx(torch.ops.kcl.gram, tracing_mode="fake")(features)
            assert torch.equal(traced(features), gram(features))


class TestInner:
    """As a GPU computes it: an operator with a gradient and a vmap rule of its own, which work anywhere."""

    def test_is_the_plain_product_with_its_gradient(self, draw64: Any) -> None:
        x, y = draw64.normal(5, 3).requires_grad_(), draw64.normal(4, 3).requires_grad_()
        torch.testing.assert_close(Inner.apply(x, y), inner(x, y), rtol=1e-12, atol=1e-12)
        assert torch.autograd.gradcheck(Inner.apply, (x, y))
        assert torch.autograd.gradcheck(lambda x: Inner.apply(x, x), (x,))  # a Gram matrix: both sides move

    @pytest.mark.parametrize("in_dims", [(0, 0), (0, None), (None, 0), (1, 0)], ids=str)
    def test_is_the_same_for_stacked_runs(self, draw64: Any, in_dims: tuple[int | None, int | None]) -> None:
        shapes = {0: (6, 5, 3), 1: (5, 6, 3), None: (5, 3)}
        x, y = (draw64.normal(*shapes[dim]).requires_grad_() for dim in in_dims)
        direction = draw64.normal(6, 5, 5)
        results = []
        for function in (Inner.apply, lambda x, y: x @ y.mT):
            out = torch.func.vmap(function, in_dims)(x, y)
            results.append([out, *torch.autograd.grad((out * direction).sum(), [x, y])])
        torch.testing.assert_close(*results, rtol=1e-12, atol=1e-12)

    def test_leaves_the_flags(self, draw: Any, before: tuple[bool, bool]) -> None:
        torch.ops.kcl.inner(draw.normal(5, 3), draw.normal(4, 3))
        assert _flags() == before
        shape = make_fx(torch.ops.kcl.inner, tracing_mode="fake")(draw.normal(2, 5, 3), draw.normal(2, 4, 3))
        assert shape(draw.normal(2, 5, 3), draw.normal(2, 4, 3)).shape == (2, 5, 4)
