"""Progress within a task, step by step, watched without making a GPU wait."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from kcl.core.shapes import Float

CHUNK = 250
"""Steps between two reports on a GPU."""


class Step(NamedTuple):
    """Progress within a task: `step` of `steps` are done; `loss` is that of the last, averaged over the runs."""

    step: int
    steps: int
    loss: float


OnStep = Callable[[Step], None]
BetweenSteps = Callable[[], None]
"""Called after every step, when the state of the runs is consistent: it may save it or end the training."""


class Watcher:
    """Reports to `on_step` how far the device has come. The host stays at most two chunks of steps ahead."""

    def __init__(self, device: torch.device, losses: Float[Tensor, "steps s"], on_step: OnStep, sent: int = 0) -> None:
        """`sent`: steps already done, where a task is resumed."""
        self.device, self.losses, self.on_step = device, losses, on_step
        self.sent = sent
        self._chunks: deque[tuple[int, torch.cuda.Event]] = deque()
        self._side = torch.cuda.Stream(device) if device.type == "cuda" else None

    def one_more(self) -> None:
        self.sent += 1
        if self._side is None:
            self._report(self.sent)
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
                self._report(self.sent)

    def _catch_up(self) -> None:
        sent, event = self._chunks.popleft()
        assert self._side is not None  # noqa: S101 - chunks are only made on a GPU
        self._side.wait_event(event)
        with torch.cuda.stream(self._side):  # this copy waits for the chunk, not for the steps sent after it
            self._report(sent)

    def _report(self, done: int) -> None:
        finite = [loss for loss in self.losses[done - 1].tolist() if math.isfinite(loss)]
        self.on_step(Step(done, len(self.losses), sum(finite) / len(finite) if finite else math.nan))
