"""The random draws a computation may ask for. It never draws itself: the draws belong to a run (`training.draws`)."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from torch import Tensor


@runtime_checkable
class Noise(Protocol):
    """A source of independent draws, in the order they are requested."""

    def normal(self, *shape: int) -> Tensor:
        """Standard normal draws."""
        ...

    def uniform(self, *shape: int) -> Tensor:
        """Draws from [0, 1)."""
        ...

    def kept(self, rate: Tensor, *shape: int) -> Tensor:
        """Booleans, each false with probability `rate`."""
        ...


def dropout(x: Tensor, rate: Tensor, noise: Noise) -> Tensor:
    """Zeroes each entry with probability `rate` and scales the rest by 1 / (1 − rate)."""
    return x * (noise.kept(rate, *x.shape) / (1.0 - rate))
