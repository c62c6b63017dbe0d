"""The way of a GPU where there is none."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from kcl.core.devices import Compute
from kcl.functional.noise import RunNoise
from kcl.ops import philox
from kcl.training.draws import Request, Source
from kcl.training.stack import RunStack


class LikeGpu(Compute):
    """Groups and stacks runs as on a GPU, but on the CPU."""

    on_cpu = False


class SeparateSource:
    """A stack's draws as each run would get them from its own `RunNoise`: stacked runs are then what plain ones are."""

    def __init__(self, requests: Sequence[Request], seeds: Sequence[int], purpose: str, *indices: int) -> None:
        self.requests, self.drawn = requests, list[Tensor]()
        self.states: dict[str, Tensor] = {}
        self.begin(seeds, purpose, *indices)

    def begin(self, seeds: Sequence[int], purpose: str, *indices: int) -> None:
        self.noises = [RunNoise(torch.device("cpu"), seed, purpose, *indices) for seed in seeds]
        for run, noise in enumerate(self.noises):
            state = noise.generator.get_state()
            self.states.setdefault(str(run), state).copy_(state)

    def draw(self) -> None:
        for noise, state in zip(self.noises, self.states.values(), strict=True):
            noise.generator.set_state(state)
        runs = [[self._one(noise, request, run) for request in self.requests] for run, noise in enumerate(self.noises)]
        self.drawn = [torch.stack(same) for same in zip(*runs, strict=True)]
        for noise, state in zip(self.noises, self.states.values(), strict=True):
            state.copy_(noise.generator.get_state())

    def _one(self, noise: RunNoise, request: Request, run: int) -> Tensor:
        if request.kind == philox.KEPT:
            return noise.kept(torch.tensor(request.rates[run]), *request.shape)
        return (noise.normal if request.kind == philox.NORMAL else noise.uniform)(*request.shape)

    def share(self, other: Any) -> None:
        self.noises, self.states = other.noises, other.states

    def position(self) -> dict[str, Tensor]:
        return self.states


def source_as_separate(stack: RunStack, requests: Sequence[Request], purpose: str, index: int, seeds: Any) -> Any:
    """In place of `RunStack.source`: compiled steps keep their draws."""
    if stack.compiled:
        return Source(requests, stack.device, seeds, purpose, index)
    return SeparateSource(requests, seeds, purpose, index)
