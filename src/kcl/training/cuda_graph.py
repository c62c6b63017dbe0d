"""A step captured in a CUDA graph, and a way to watch its progress that never makes the device wait."""

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
    """Captures `step` once; every call replays it. `changed` are the tensors a step changes in place. It uses the
    memory of `another`, which is never replayed beside it.
    """

    def __init__(self, step: Callable[[], None], changed: Sequence[Tensor], another: GraphedStep | None = None) -> None:
        saved = [tensor.clone() for tensor in changed]
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):  # rehearsals choose algorithms and compile kernels; then all is put back
            for _ in range(3):  # each from where the run stands: after its last batch there is no other
                step()
                for tensor, value in zip(changed, saved, strict=True):
                    tensor.copy_(value)
        torch.cuda.current_stream().wait_stream(side)
        self.graph = torch.cuda.CUDAGraph()
        gc.collect()  # a graph that is thrown away while another is captured spoils the capture
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
    """Draw a step's noise beside the step's beginning, which needs uniforms at most; gives what to call before any
    other is used.
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
