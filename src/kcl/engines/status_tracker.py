"""Where a set of orders stands: queued, running, done, failed; accuracy so far, time left, how fast each worker is."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from kcl.engines.job import Message, Order


class Worker:
    """What one worker has done since its first order."""

    def __init__(self, now: float) -> None:
        self.since, self.runs, self.doing = now, 0, ""

    def per_hour(self, now: float) -> float:
        """Runs an hour."""
        return 3600.0 * self.runs / max(now - self.since, 1e-9)


class Board:
    """Counts of runs, not of orders. `clock` gives seconds that never go back."""

    def __init__(
        self, done: int, total: int, label: Callable[[Order], str], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.total, self.done, self.failed, self.running, self._label, self._clock = total, done, 0, 0, label, clock
        self.workers: dict[str, Worker] = {}
        self._length, self._finished, self._begun = 0.0, 0.0, clock()
        self._part: dict[str, float] = {}
        self._left: dict[str, int] = {}
        """Runs of each order that are not kept yet."""
        self._accuracy = 0.0
        self._measured = 0

    @property
    def queued(self) -> int:
        return self.total - self.done - self.failed - self.running

    @property
    def average_accuracy(self) -> float | None:
        """Of the runs finished since the command began."""
        return self._accuracy / self._measured if self._measured else None

    def expect(self, orders: Sequence[Order]) -> None:
        self._length, self._begun = sum(order.length for order in orders), self._clock()

    def started(self, order: Order) -> None:
        self._left.setdefault(order.name, len(order.runs))
        self.running += self._left[order.name]

    def progressed(self, order: Order, worker: str, message: Message) -> None:
        self._worker(worker).doing = self._label(order)
        if message["kind"] == "progress":
            within = 1.0 if message["step"] is None else message["step"][0] / message["step"][1]
            self._part[order.name] = order.length * (message["task"] + within) / message["tasks"]

    def kept(self, order: Order, worker: str, record: dict[str, Any]) -> None:
        self.done += 1
        self.running -= 1
        self._left[order.name] -= 1
        self._worker(worker).runs += 1
        if record.get("average_accuracy") is not None:
            self._accuracy += record["average_accuracy"]
            self._measured += 1

    def ended(self, order: Order, worker: str, well: bool, again: bool) -> None:
        self._part.pop(order.name, None)
        self.running -= self._left[order.name]
        if worker in self.workers:
            self.workers[worker].doing = ""
        if again:
            return
        self._finished += order.length
        left = self._left.pop(order.name)
        self.failed += 0 if well else left

    def seconds_left(self) -> float | None:
        """At the pace so far; None while nothing tells it."""
        done = self._finished + sum(self._part.values())
        return (self._clock() - self._begun) / done * (self._length - done) if done > 0 else None

    def to_dict(self) -> dict[str, Any]:
        now, left = self._clock(), self.seconds_left()
        return {
            "format": 1,
            **{name: getattr(self, name) for name in ("total", "queued", "running", "done", "failed")},
            "average_accuracy": None if self.average_accuracy is None else round(self.average_accuracy, 3),
            "seconds_left": None if left is None else round(left, 1),
            "workers": [
                {"worker": name, "runs": own.runs, "runs_per_hour": round(own.per_hour(now), 2), "doing": own.doing}
                for name, own in self.workers.items()
            ],
        }

    def _worker(self, name: str) -> Worker:
        return self.workers.setdefault(name, Worker(self._clock()))
