"""Work that does not fill a GPU, run several pieces at a time on separate CUDA streams."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import torch

STREAMS = 5
INPUTS = "inputs"
"""The purpose of work that the rest of a pass waits for. It has priority over work that no pass waits for: gradients of
weights, packing, noise.
"""


@cache
def _streams(device: torch.device, purpose: str) -> list[torch.cuda.Stream]:
    return [torch.cuda.Stream(device, priority=-1 if purpose == INPUTS else 0) for _ in range(STREAMS)]


@cache
def passing(device: torch.device) -> torch.cuda.Stream:
    """The stream of the passes themselves."""
    return torch.cuda.Stream(device, priority=-1)


def stream(device: torch.device, purpose: str) -> torch.cuda.Stream:
    """A stream for work that overlaps with the current one's."""
    return _streams(device, purpose)[0]


def begin(device: torch.device, purpose: str, count: int, one: Callable[[int], None]) -> list[torch.cuda.Stream]:
    """Run one(0), …, one(count − 1) on several streams, which start after the current stream's work. Returns them."""
    current, sides = torch.cuda.current_stream(device), _streams(device, purpose)[:count]
    for side in sides:
        side.wait_stream(current)
    for number in range(count):
        with torch.cuda.stream(sides[number % len(sides)]):
            one(number)
    return sides


def side_by_side(device: torch.device, purpose: str, count: int, one: Callable[[int], None]) -> None:
    """The same, and the current stream waits for them. So memory that a side stream frees is not reused before the
    current stream is done with it.
    """
    if count == 1:
        one(0)
        return
    for side in begin(device, purpose, count, one):
        torch.cuda.current_stream(device).wait_stream(side)
