"""The one who gives orders: the longest first, to whoever has room; results into one store, failures tried again."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

from kcl.engines.engine import Engine, Event
from kcl.engines.job import ENDS, Message, Needs, Order
from kcl.engines.retries import Attempts
from kcl.training.stopping import Interrupted, Stop

WAIT = 0.2
"""Seconds between two looks at whether a signal has come."""
GRACE = 60.0
"""Seconds that workers have to save when they are stopped."""


class Watcher(Protocol):
    """What is told of everything that happens."""

    def queued(self, orders: Sequence[Order]) -> None: ...

    def started(self, order: Order) -> None: ...

    def progressed(self, order: Order, worker: str, message: Message) -> None: ...

    def kept(self, order: Order, worker: str, records: Sequence[dict[str, Any]]) -> None: ...

    def ended(self, order: Order, worker: str, message: Message, again: bool) -> None: ...

    def stuck(self, needs: Sequence[Needs]) -> None: ...

    def tick(self) -> None: ...


class Queue:
    """Orders that wait, by what they need; each kind in the order given, the longest first."""

    def __init__(self, orders: Iterable[Order]) -> None:
        self._waiting: dict[Needs, deque[Order]] = {}
        for order in orders:
            self._waiting.setdefault(order.needs, deque()).append(order)

    def __bool__(self) -> bool:
        return any(self._waiting.values())

    @property
    def needs(self) -> list[Needs]:
        """What the orders that wait need."""
        return list(self._waiting)

    def take(self, room: Callable[[Needs], bool]) -> Order | None:
        """The longest order that there is room for."""
        for needs in sorted(self._waiting, key=lambda own: -self._waiting[own][0].length):
            if room(needs):
                order = self._waiting[needs].popleft()
                if not self._waiting[needs]:
                    del self._waiting[needs]
                return order
        return None

    def put_back(self, order: Order) -> None:
        """One that has to be tried again: before the others, so that what fails is known soon."""
        self._waiting.setdefault(order.needs, deque()).appendleft(order)


class Dispatcher:
    """`store` keeps records and answers which of them were new; it is called by nobody else."""

    def __init__(
        self,
        engine: Engine,
        store: Callable[[Sequence[dict[str, Any]]], list[dict[str, Any]]],
        watcher: Watcher,
        attempts: Attempts,
        label: Callable[[Order], str],
        stop: Stop | None = None,
    ) -> None:
        self._engine, self._store, self._watcher = engine, store, watcher
        self._attempts, self._label, self._stop = attempts, label, stop or Stop()
        self._running: dict[str, Order] = {}
        self._avoid: dict[str, str] = {}

    def run(self, orders: Sequence[Order]) -> None:
        """Until every order is done or given up, or a signal comes: then all are saved, and it is passed on."""
        queue = Queue(orders)
        self._watcher.queued(orders)
        with self._stop.deferred():
            try:
                while queue or self._running:
                    self._stop.check()
                    while (order := queue.take(self._engine.room)) is not None:
                        self._engine.start(order, self._avoid.get(order.name))
                        self._running[order.name] = order
                        self._watcher.started(order)
                    if not self._running:
                        self._watcher.stuck(queue.needs)
                    for order in self._heed(self._engine.wait(WAIT)):
                        queue.put_back(order)
                    self._watcher.tick()
            except Interrupted:
                self._wind_up()
                raise

    def _wind_up(self) -> None:
        """Everybody saves; what is finished meanwhile is kept."""
        self._engine.stop()
        until = time.monotonic() + GRACE
        while self._running and time.monotonic() < until:
            self._heed(self._engine.wait(WAIT))

    def _heed(self, events: Sequence[Event]) -> list[Order]:
        """Keep what was finished, all of it at once; the orders that have to be tried again."""
        records = [event.message["record"] for event in events if event.message["kind"] == "record"]
        new = {id(record) for record in self._store(records)} if records else set()
        again = []
        for name, worker, message in events:
            order = self._running.get(name)
            if order is None:
                continue
            if message["kind"] == "record":
                self._watcher.kept(order, worker, [message["record"]] if id(message["record"]) in new else [])
            elif message["kind"] in ENDS:
                again += self._end(order, worker, message)
            else:
                if message["kind"] == "progress":
                    self._attempts.learned(name, message["task"] + (message["step"] is None))
                self._watcher.progressed(order, worker, message)
        return again

    def _end(self, order: Order, worker: str, message: Message) -> list[Order]:
        del self._running[order.name]
        kind = message["kind"]
        if kind == "done":
            self._attempts.done(order.name)
            self._watcher.ended(order, worker, message, again=False)
            return []
        if self._stop.asked is not None:  # it was asked to end
            self._watcher.ended(order, worker, message, again=True)
            return []
        self._avoid[order.name] = worker
        following = self._attempts.failed(order, self._label(order), worker, message)
        self._watcher.ended(order, worker, message, again=following is not None)
        return [] if following is None else [following]
