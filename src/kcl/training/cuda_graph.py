"""A step captured in a CUDA graph, and noise drawn on a second stream."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache

import torch
from torch import Tensor

from kcl.ops.streams import passing
from kcl.training.draws import Source


class GraphedStep:
    """Captures `step` once; every call replays it. `changed`: tensors that a step changes in place. `another`: a graph
    never replayed at the same time, whose memory pool is shared.
    """

    def __init__(self, step: Callable[[], None], changed: Sequence[Tensor], another: GraphedStep | None = None) -> None:
        saved = [tensor.clone() for tensor in changed]
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):  # rehearsals choose algorithms and compile kernels
            for _ in range(3):  # each restored to the start: after the last batch there is no next
                step()
                for tensor, value in zip(changed, saved, strict=True):
                    tensor.copy_(value)
        torch.cuda.current_stream().wait_stream(side)
        self.graph = torch.cuda.CUDAGraph()
        gc.collect()  # freeing a graph during a capture would break the capture
        collecting = gc.isenabled()
        gc.disable()
        try:
            device = torch.device("cuda", torch.cuda.current_device())
            pool = None if another is None else another.graph.pool()
            with torch.cuda.graph(self.graph, pool=pool, stream=passing(device)):
                step()
        finally:
            if collecting:
                gc.enable()

    def __call__(self) -> None:
        self.graph.replay()


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
