"""A step captured in a CUDA graph, and a way to watch its progress that never makes the device wait."""

from __future__ import annotations

import gc
import math
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import NamedTuple

import torch
from torch import Tensor

from kcl.core.shapes import Float
from kcl.ops.streams import passing
from kcl.training.draws import Source

CHUNK = 250


class Step(NamedTuple):
    """Progress within a task: `step` of `steps` done, with the loss of that step, averaged over the runs."""

    step: int
    steps: int
    loss: float


OnStep = Callable[[Step], None]
BetweenSteps = Callable[[], None]
"""Called after every step, when the state of the runs is whole: it may be saved, and the training may be ended."""


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


class Watcher:
    """Tells `on_step` how far the device has come. The host stays at most two chunks of steps ahead."""

    def __init__(self, device: torch.device, losses: Float[Tensor, "steps s"], on_step: OnStep, sent: int = 0) -> None:
        """`sent`: steps done before, of a task that is gone on with."""
        self.device, self.losses, self.on_step = device, losses, on_step
        self.sent = sent
        self._chunks: deque[tuple[int, torch.cuda.Event]] = deque()
        self._side = torch.cuda.Stream(device) if device.type == "cuda" else None

    def one_more(self) -> None:
        self.sent += 1
        if self._side is None:
            self._tell(self.sent)
        elif self.sent % CHUNK == 0:
            event = torch.cuda.Event()
            event.record()
            self._chunks.append((self.sent, event))
            if len(self._chunks) > 2:
                self._catch_up()

    def finish(self) -> None:
        """Wait for the last step."""
        while self._chunks:
            self._catch_up()
        if self._side is not None:
            torch.cuda.current_stream(self.device).synchronize()
            if self.sent % CHUNK:
                self._tell(self.sent)

    def _catch_up(self) -> None:
        sent, event = self._chunks.popleft()
        assert self._side is not None  # noqa: S101 - chunks are only made on a GPU
        self._side.wait_event(event)
        with torch.cuda.stream(self._side):  # this copy waits for the chunk, not for the steps sent after it
            self._tell(sent)

    def _tell(self, done: int) -> None:
        finite = [loss for loss in self.losses[done - 1].tolist() if math.isfinite(loss)]
        self.on_step(Step(done, len(self.losses), sum(finite) / len(finite) if finite else math.nan))
