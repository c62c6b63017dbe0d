"""Work that does not fill a GPU, several pieces at a time on streams of their own."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import torch

STREAMS = 5


INPUTS = "inputs"
"""The purpose of what the rest of a pass waits for. Its work goes before that of other streams, which a pass does not
wait for: weights' gradients, packing, noise.
"""


@cache
def _streams(device: torch.device, purpose: str) -> list[torch.cuda.Stream]:
    return [torch.cuda.Stream(device, priority=-1 if purpose == INPUTS else 0) for _ in range(STREAMS)]


@cache
def passing(device: torch.device) -> torch.cuda.Stream:
    """For the passes themselves, which everybody waits for."""
    return torch.cuda.Stream(device, priority=-1)


def stream(device: torch.device, purpose: str) -> torch.cuda.Stream:
    """A stream for work beside the present one's."""
    return _streams(device, purpose)[0]


def begin(device: torch.device, purpose: str, count: int, one: Callable[[int], None]) -> list[torch.cuda.Stream]:
    """one(0), …, one(count − 1) on several streams, given back, that begin after the present one's work."""
    present, sides = torch.cuda.current_stream(device), _streams(device, purpose)[:count]
    for side in sides:
        side.wait_stream(present)
    for number in range(count):
        with torch.cuda.stream(sides[number % len(sides)]):
            one(number)
    return sides


def side_by_side(device: torch.device, purpose: str, count: int, one: Callable[[int], None]) -> None:
    """The same, and the streams end before the present one's next work. So memory that a side stream gives back is not
    used again before the present stream is done with it.
    """
    if count == 1:
        one(0)
        return
    for side in begin(device, purpose, count, one):
        torch.cuda.current_stream(device).wait_stream(side)
