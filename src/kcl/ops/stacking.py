"""Help for the vmap rules of operations that take the runs as a leading dimension by themselves."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor


def runs_first(count: int, in_dims: Sequence[int | None], tensors: Sequence[Tensor]) -> list[Tensor]:
    """Every tensor with the runs in its first dimension; one that all runs share is repeated without copying."""
    return [
        tensor.expand(count, *tensor.shape) if dim is None else tensor.movedim(dim, 0)
        for tensor, dim in zip(tensors, in_dims, strict=True)
    ]
