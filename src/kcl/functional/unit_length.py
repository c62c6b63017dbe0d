"""Features of length one, of one stage of a network or of several."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from kcl.core.shapes import Float


def weigh_stages(features: Float[Tensor, "n d"], parts: Sequence[int]) -> Float[Tensor, "n d"]:
    """Features of several stages, scaled to unit length: each stage has half the squared length of the next."""
    squares = [2.0**stage / (2.0 ** len(parts) - 1.0) for stage in range(len(parts))]
    stages = zip(features.split(list(parts), dim=-1), squares, strict=True)
    return torch.cat([math.sqrt(square) * unit_length(stage) for stage, square in stages], dim=-1)


def unit_length(features: Float[Tensor, "n d"]) -> Float[Tensor, "n d"]:
    """x / ‖x‖, smoothed at zero: all-zero features stay zero and have a finite gradient."""
    return features * torch.rsqrt(features.square().sum(-1, keepdim=True) + 1e-12)
