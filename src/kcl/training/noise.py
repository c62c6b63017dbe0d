"""Randomness that belongs to a run: the same draws whether the run is alone, beside others, or begun again."""

from __future__ import annotations

import torch
from torch import Tensor

from kcl.randomness import torch_generator


class RunNoise:
    """Draws for one purpose of one run, in the order they are asked for."""

    def __init__(self, device: torch.device, seed: int, purpose: str, *indices: int) -> None:
        self.generator = torch_generator(device, seed, purpose, *indices)

    def normal(self, *shape: int) -> Tensor:
        return torch.randn(shape, generator=self.generator, device=self.generator.device)

    def uniform(self, *shape: int) -> Tensor:
        return torch.rand(shape, generator=self.generator, device=self.generator.device)
