"""Randomness that belongs to a run: the same draws whether the run is alone, beside others, or begun again.

A method asks for draws through a `Noise`. One run on its own is handed `RunNoise`. Stacked runs cannot draw inside a
vmapped step, so a `Recorder` first learns what a step asks for, a `Source` then draws all of it for all runs, and a
`Replay` hands it out in the same order.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from kcl.cuda import philox
from kcl.randomness import derive, torch_generator
from kcl.shapes import Float


class RunNoise:
    """Draws for one purpose of one run, in the order they are asked for."""

    def __init__(self, device: torch.device, seed: int, purpose: str, *indices: int) -> None:
        self.generator = torch_generator(device, seed, purpose, *indices)

    def normal(self, *shape: int) -> Tensor:
        return torch.randn(shape, generator=self.generator, device=self.generator.device)

    def uniform(self, *shape: int) -> Tensor:
        return torch.rand(shape, generator=self.generator, device=self.generator.device)


class Request(NamedTuple):
    kind: int
    shape: tuple[int, ...]


class Recorder:
    """Hands out harmless numbers and remembers what was asked for."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.requests: list[Request] = []

    def normal(self, *shape: int) -> Tensor:
        self.requests.append(Request(philox.NORMAL, shape))
        return torch.zeros(shape, device=self.device)

    def uniform(self, *shape: int) -> Tensor:
        self.requests.append(Request(philox.UNIFORM, shape))
        return torch.full(shape, 0.5, device=self.device)


class Replay:
    """Hands out draws made beforehand, in the order of the requests."""

    def __init__(self, drawn: Sequence[Tensor]) -> None:
        self._left = iter(drawn)

    def normal(self, *shape: int) -> Tensor:  # noqa: ARG002
        return next(self._left)

    def uniform(self, *shape: int) -> Tensor:  # noqa: ARG002
        return next(self._left)


class Source(ABC):
    """Draws for one purpose of s runs, step after step."""

    drawn: list[Float[Tensor, "s ..."]]
    changes: Sequence[Tensor] = ()
    """Tensors of its own that a draw changes, apart from `drawn`."""

    @abstractmethod
    def draw(self) -> None:
        """Fill `drawn` for the next step."""

    @abstractmethod
    def share(self, other: Any) -> None:
        """Take part in another source's sequence of steps."""

    @abstractmethod
    def renew(self, other: Any) -> None:
        """Go on as `other`, a new source with the same requests, in the tensors that are here already."""


class SeparateSource(Source):
    """The draws each run would get from its own `RunNoise`: for the CPU."""

    def __init__(self, requests: Sequence[Request], noises: Sequence[RunNoise]) -> None:
        self.requests, self.noises = requests, noises

    def draw(self) -> None:
        self.drawn = [torch.empty(len(self.noises), *request.shape) for request in self.requests]
        for run, noise in enumerate(self.noises):
            for request, drawn in zip(self.requests, self.drawn, strict=True):
                kind = noise.normal if request.kind == philox.NORMAL else noise.uniform
                drawn[run] = kind(*request.shape)

    def share(self, other: SeparateSource) -> None:
        self.noises = other.noises

    def renew(self, other: SeparateSource) -> None:
        self.noises = other.noises


class PhiloxSource(Source):
    """One kernel per kind of draw for all runs, into tensors that stay where they are: for CUDA graphs."""

    def __init__(
        self, requests: Sequence[Request], device: torch.device, seeds: Sequence[int], purpose: str, *indices: int
    ) -> None:
        derived = [derive(seed, purpose, *indices) for seed in seeds]
        self.key = torch.tensor([[seed & 0xFFFFFFFF, seed >> 32] for seed in derived], device=device)
        self.step = torch.zeros(1, dtype=torch.int64, device=device)
        self.changes = [self.step]
        taken = {philox.NORMAL: 0, philox.UNIFORM: 0}
        places = []
        for request in requests:
            size = math.prod(request.shape)
            places.append((request, taken[request.kind], size))
            taken[request.kind] += -(-size // 32) * 32  # every tensor begins at a multiple of 128 bytes
        self._flat = {kind: torch.empty(len(seeds), size, device=device) for kind, size in taken.items() if size}
        self.drawn = [
            self._flat[request.kind][:, start : start + size].view(len(seeds), *request.shape)
            for request, start, size in places
        ]

    def draw(self) -> None:
        for kind, out in self._flat.items():
            philox.draw(out, self.key, self.step, kind)
        self.step += 1

    def share(self, other: PhiloxSource) -> None:
        self.step = other.step
        self.changes = [self.step]

    def renew(self, other: PhiloxSource) -> None:
        self.key.copy_(other.key)
        self.step.zero_()
