"""For the vmap rules of operations that handle a leading dimension of runs themselves."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor


def runs_first(count: int, in_dims: Sequence[int | None], tensors: Sequence[Tensor]) -> list[Tensor]:
    """Every tensor with the runs as its first dimension; one that all runs share is expanded without a copy."""
    return [
        tensor.expand(count, *tensor.shape) if dim is None else tensor.movedim(dim, 0)
        for tensor, dim in zip(tensors, in_dims, strict=True)
    ]
