"""Which products may be rounded: the flags are put back whatever happens, and the Gram matrix is a plain product."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from kcl.cuda.precision import gram, products


def _flags() -> tuple[bool, bool]:
    return torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32


@pytest.fixture(params=[(False, False), (False, True), (True, False), (True, True)], ids=str)
def before(request: pytest.FixtureRequest) -> Iterator[tuple[bool, bool]]:
    """Every state the flags may be found in."""
    found = _flags()
    torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = request.param
    yield request.param
    torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = found


@pytest.mark.parametrize("tf32", [False, True])
class TestProducts:
    def test_sets_both_flags_and_puts_them_back(self, before: tuple[bool, bool], tf32: bool) -> None:
        with products(tf32):
            assert _flags() == (tf32, tf32)
        assert _flags() == before

    def test_puts_them_back_after_an_exception(self, before: tuple[bool, bool], tf32: bool) -> None:
        with pytest.raises(KeyboardInterrupt), products(tf32):
            raise KeyboardInterrupt
        assert _flags() == before

    def test_may_stand_inside_itself(self, before: tuple[bool, bool], tf32: bool) -> None:
        with products(tf32):
            with products(not tf32):
                assert _flags() == (not tf32, not tf32)
            assert _flags() == (tf32, tf32)
        assert _flags() == before


class TestGram:
    @pytest.mark.parametrize("shape", [(1, 1), (5, 3), (3, 7, 4), (2, 3, 4, 2)], ids=str)
    def test_is_the_plain_product(self, draw: Any, shape: tuple[int, ...]) -> None:
        features = draw.normal(*shape)
        expected = torch.einsum("...md,...nd->...mn", features.double(), features.double())
        torch.testing.assert_close(gram(features).double(), expected, rtol=1e-5, atol=1e-5)

    def test_as_an_operator_it_gives_the_same_and_leaves_the_flags(self, draw: Any) -> None:
        """The operator a GPU uses can be called, and traced without being computed, anywhere."""
        features = draw.normal(3, 7, 4)
        with products(tf32=False):
            assert torch.equal(torch.ops.kcl.gram(features), gram(features))
            assert _flags() == (False, False)
            traced = make_fx(torch.ops.kcl.gram, tracing_mode="fake")(features)
            assert torch.equal(traced(features), gram(features))
