"""Randomness that belongs to a run: the same draws whether the run is alone, stacked with others, or resumed.

A method draws through a `Noise`. A single run gets `RunNoise`. Stacked runs cannot draw inside a vmapped step, so a
`Recorder` first records what a step requests, a `Source` then draws it for all runs, and a `DrawnNoise` hands out the
draws in the same order.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from kcl.core.randomness import derive
from kcl.ops import draw_philox, philox


class Request(NamedTuple):
    kind: int
    shape: tuple[int, ...]
    rates: tuple[float, ...] = ()
    """For dropout masks: the rate of dropped entries in each run."""

    def placeholder(self, *runs: int, device: torch.device) -> Tensor:
        """A placeholder with the shape and type of such a draw."""
        if self.kind == philox.KEPT:
            return torch.ones(*runs, *self.shape, dtype=torch.bool, device=device)
        return torch.full((*runs, *self.shape), 0.5 if self.kind == philox.UNIFORM else 0.0, device=device)


class Recorder:
    """Hands out placeholders and records the requests."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.requests: list[Request] = []

    def normal(self, *shape: int) -> Tensor:
        return self._record(Request(philox.NORMAL, shape))

    def uniform(self, *shape: int) -> Tensor:
        return self._record(Request(philox.UNIFORM, shape))

    def kept(self, rate: Tensor, *shape: int) -> Tensor:
        return self._record(Request(philox.KEPT, shape, (float(rate),)))

    def _record(self, request: Request) -> Tensor:
        self.requests.append(request)
        return request.placeholder(device=self.device)


def merge(requests: Sequence[Sequence[Request]]) -> list[Request]:
    """The requests of all runs as one list. Runs request the same shapes, but may have different rates."""
    return [
        Request(same[0].kind, same[0].shape, tuple(rate for request in same for rate in request.rates))
        for same in zip(*requests, strict=True)
    ]


class DrawnNoise:
    """Hands out draws made beforehand, in the order of the requests. `ready` is called before any draw that is not
    uniform (see `Source.draw_uniforms`).
    """

    def __init__(self, drawn: Sequence[Tensor], ready: Callable[[], None] = lambda: None) -> None:
        self._left, self._ready = iter(drawn), ready

    def uniform(self, *_: int) -> Tensor:
        return next(self._left)

    def normal(self, *_: Any) -> Tensor:
        self._ready()
        return next(self._left)

    kept = normal


class Source:
    """Draws for one purpose of s runs, step after step: by one kernel per kind of draw for all runs, into tensors at
    fixed addresses, as CUDA graphs and compiled steps need them.
    """

    def __init__(
        self, requests: Sequence[Request], device: torch.device, seeds: Sequence[int], purpose: str, *indices: int
    ) -> None:
        self.key = torch.empty(len(seeds), 2, dtype=torch.int64, device=device)
        self.step = torch.empty(1, dtype=torch.int64, device=device)
        """The number of draws made, which a draw changes."""
        self.begin(seeds, purpose, *indices)
        self.drawn = [torch.empty(0)] * len(requests)
        """What was requested, in this order (s × …)."""
        self._fill: list[tuple[Tensor, int, Tensor | None, int]] = []
        for kind in (philox.NORMAL, philox.UNIFORM, philox.KEPT):
            numbers = [number for number, request in enumerate(requests) if request.kind == kind]
            sizes = [math.prod(requests[number].shape) for number in numbers]
            ends = [0, *itertools.accumulate(-(-size // 128) * 128 for size in sizes)]  # aligned for vectorised loads
            flat = torch.empty(len(seeds), ends[-1], device=device, dtype=torch.bool if kind == philox.KEPT else None)
            for number, size, start in zip(numbers, sizes, ends, strict=False):
                self.drawn[number] = flat[:, start : start + size].view(len(seeds), *requests[number].shape)
            # One kernel call for each stretch of equal rates. The draws do not depend on where a stretch begins.
            rates_of = [requests[number].rates for number in numbers]
            for rates, stretch in itertools.groupby(range(len(numbers)), rates_of.__getitem__):
                places = list(stretch)
                start, end = ends[places[0]], ends[places[-1] + 1]
                if end > start:
                    rates_tensor = torch.tensor(rates, device=device) if rates else None
                    self._fill.append((flat[:, start:end], kind, rates_tensor, start // 4))

    def begin(self, seeds: Sequence[int], purpose: str, *indices: int) -> None:
        """Start the draws for a purpose, in the existing tensors."""
        derived = [derive(seed, purpose, *indices) for seed in seeds]
        self.key.copy_(torch.tensor([[seed & 0xFFFFFFFF, seed >> 32] for seed in derived]))
        self.step.zero_()

    def draw(self) -> None:
        """Fill `drawn` for the next step."""
        self.draw_uniforms()
        self.draw_others()

    def draw_uniforms(self) -> None:
        """What a step needs at its beginning; `draw_others` must follow."""
        self._draw(philox.UNIFORM)

    def draw_others(self) -> None:
        self._draw(philox.NORMAL, philox.KEPT)
        self.step += 1

    def _draw(self, *kinds: int) -> None:
        for out, kind, rates, first in self._fill:
            if kind in kinds:
                draw_philox(out, self.key, self.step, kind, rates, first)

    def share(self, other: Source) -> None:
        """Draw from the same sequence of steps as another source."""
        self.key, self.step = other.key, other.step

    def position(self) -> dict[str, Tensor]:
        """In the sequence of steps, for checkpoints: the tensors themselves."""
        return {"step": self.step}


@contextmanager
def drawn_beside(source: Source, device: torch.device) -> Iterator[Callable[[], None]]:
    """Draw a step's noise in parallel with the beginning of the step, which needs uniforms at most. Yields a function
    to call before any other noise is used.
    """
    if device.type != "cuda":
        source.draw()
        yield lambda: None
        return
    source.draw_uniforms()
    present, side = torch.cuda.current_stream(device), _side(device)
    side.wait_stream(present)
    with torch.cuda.stream(side):
        source.draw_others()
    yield lambda: present.wait_stream(side)
    present.wait_stream(side)


@cache
def _side(device: torch.device) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)
