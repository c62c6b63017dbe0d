"""Feature maps against the kernels they approximate."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from kcl.functional import kernels
from kcl.methods.feature_maps import DEGREE, FEATURE_MAPS, NystroemMap

BASES = 20_000


def _arc_cosine(x: Tensor, y: Tensor) -> Tensor:
    lengths = torch.outer(x.norm(dim=1), y.norm(dim=1))
    angles = torch.acos((x @ y.mT / lengths).clamp(-1, 1))
    return lengths * (angles.sin() + (torch.pi - angles) * angles.cos()) / torch.pi


EXACT = {
    "rbf": lambda x, y: kernels.rbf(x, y, 0.5),
    "laplacian": lambda x, y: kernels.laplacian(x, y, 1.0),
    "relu": _arc_cosine,
    "orthogonal-relu": _arc_cosine,
    "polynomial": lambda x, y: kernels.polynomial(x, y, DEGREE),
    "linear": lambda x, y: x @ y.mT + 1.0,
}


def test_every_drawn_map_is_compared() -> None:
    assert set(EXACT) == {name for name, kind in FEATURE_MAPS.items() if not kind.given}


@pytest.mark.parametrize("name", EXACT)
def test_inner_products_approximate_the_kernel(name: str, draw64: Any) -> None:
    x = draw64.normal(12, 5) / 2.0
    kind = FEATURE_MAPS[name]
    buffers = kind.draw(5, BASES, np.random.default_rng(0))
    features = kind.apply(x, buffers)
    torch.testing.assert_close(features @ features.mT, EXACT[name](x, x), rtol=0.06, atol=0.06)


@pytest.mark.parametrize("name", EXACT)
def test_the_seed_alone_decides(name: str, draw64: Any) -> None:
    x, kind = draw64.normal(6, 5), FEATURE_MAPS[name]
    first, again, other = (kind.apply(x, kind.draw(5, 64, np.random.default_rng(seed))) for seed in (1, 1, 2))
    assert torch.equal(first, again)
    assert name == "linear" or not torch.equal(first, other)
    torch.testing.assert_close(kind.apply(x[2:4], kind.draw(5, 64, np.random.default_rng(1))), first[2:4])


def test_landmarks_are_represented_exactly(draw64: Any) -> None:
    landmarks = draw64.normal(30, 4)
    features = NystroemMap().apply(landmarks, NystroemMap().of_given(landmarks, np.random.default_rng(0)))
    torch.testing.assert_close(features @ features.mT, kernels.rbf(landmarks, landmarks), rtol=1e-6, atol=1e-8)
