"""The random draws a computation may ask for. It never draws itself: the draws belong to a run."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from kcl.core.randomness import derive


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


class RunNoise:
    """Draws for one purpose of one run, made when they are requested."""

    def __init__(self, device: torch.device, seed: int, purpose: str, *indices: int) -> None:
        self.generator = torch.Generator(device).manual_seed(derive(seed, purpose, *indices))

    def normal(self, *shape: int) -> Tensor:
        return torch.randn(shape, generator=self.generator, device=self.generator.device)

    def uniform(self, *shape: int) -> Tensor:
        return torch.rand(shape, generator=self.generator, device=self.generator.device)

    def kept(self, rate: Tensor, *shape: int) -> Tensor:
        return self.uniform(*shape) >= rate


def dropout(x: Tensor, rate: Tensor, noise: Noise) -> Tensor:
    """Zeroes each entry with probability `rate` and scales the rest by 1 / (1 − rate)."""
    return x * (noise.kept(rate, *x.shape) / (1.0 - rate))
