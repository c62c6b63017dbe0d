"""Steps captured in CUDA graphs, and a way to watch their progress that never makes the device wait."""

from __future__ import annotations

import gc
import math
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import cache, partial

import torch
from torch import Tensor

from kcl.cuda.streams import passing
from kcl.shapes import Float
from kcl.training.noise import Source
from kcl.training.run import OnStep, Step

CHUNK = 250
TOGETHER = 10
"""Steps that one graph takes, where so many alike follow one another: from replay to replay a GPU pauses, and within
a graph a step's noise can be drawn beside the step before it.
"""


def rehearse(steps: Callable[[], None], changed: Sequence[Tensor]) -> None:
    """Let algorithms be chosen and kernels compiled before a capture; `changed`, what steps change, is put back."""
    saved = [tensor.clone() for tensor in changed]
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):  # each from where the run stands: after its last batch there is no other
            steps()
            for tensor, value in zip(changed, saved, strict=True):
                tensor.copy_(value)
    torch.cuda.current_stream().wait_stream(side)


class Graph:
    """Captures `work` once; every call replays it. It uses the memory of `another` that is never replayed beside it."""

    def __init__(self, work: Callable[[], None], another: Graph | None) -> None:
        self.graph = torch.cuda.CUDAGraph()
        gc.collect()  # a graph that is thrown away while another is captured spoils the capture
        collecting = gc.isenabled()
        gc.disable()
        try:
            device = torch.device("cuda", torch.cuda.current_device())
            pool = None if another is None else another.graph.pool()
            with torch.cuda.graph(self.graph, pool=pool, stream=passing(device)):
                work()
        finally:
            if collecting:
                gc.enable()

    def __call__(self) -> None:
        self.graph.replay()


Drawn = tuple[list[Tensor], Callable[[], None]]
"""What was drawn for a step, and what to call before any of it but uniforms is used."""


def drawn_ahead(sources: Sequence[Source], count: int, device: torch.device) -> Iterator[Drawn]:
    """The noise of `count` steps. On a GPU the first step's is drawn beside its beginning, which needs uniforms at
    most, every other's beside the step before it, into the tensors of two sources in turn.
    """
    if device.type != "cuda":
        for _ in range(count):
            sources[0].draw()
            yield sources[0].drawn, lambda: None
        return
    present, side = torch.cuda.current_stream(device), _side(device)
    sources[0].draw_uniforms()
    side.wait_stream(present)
    with torch.cuda.stream(side):
        sources[0].draw_others()
    ready = side.record_event()
    for number in range(count):
        own, own_ready = sources[number % len(sources)], ready
        if number:  # its uniforms too were drawn on the side
            present.wait_event(own_ready)
        if number + 1 < count:
            side.wait_stream(present)  # the step that used these tensors before is done
            with torch.cuda.stream(side):
                sources[(number + 1) % len(sources)].draw()
            ready = side.record_event()
        yield own.drawn, partial(present.wait_event, own_ready)
        present.wait_event(own_ready)


@cache
def _side(device: torch.device) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)


class Watcher:
    """Tells `on_step` how far the device has come. The host stays at most two chunks of steps ahead."""

    def __init__(self, device: torch.device, losses: Float[Tensor, "steps s"], on_step: OnStep, sent: int = 0) -> None:
        """`sent`: steps done before, of a task that is gone on with."""
        self.device, self.losses, self.on_step = device, losses, on_step
        self.sent, self._noted = sent, sent - sent % CHUNK
        self._chunks: deque[tuple[int, torch.cuda.Event]] = deque()
        self._side = torch.cuda.Stream(device) if device.type == "cuda" else None

    def more(self, steps: int) -> None:
        """So many steps were sent to the device."""
        before, self.sent = self.sent // CHUNK, self.sent + steps
        if self._side is None:
            self._tell(self.sent)
        elif self.sent // CHUNK > before:
            self._noted = self.sent
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
            if self.sent > self._noted:
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
