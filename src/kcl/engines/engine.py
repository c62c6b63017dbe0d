"""What the dispatcher asks of an engine; each engine is one file."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import NamedTuple

from kcl.engines.job import Message, Needs, Order


class Event(NamedTuple):
    """What a worker said about an order, or what became of the worker."""

    order: str
    worker: str
    message: Message


class Engine(ABC):
    """Takes orders and says what becomes of them. Every order it has taken ends with one message of `order.ENDS`."""

    @abstractmethod
    def room(self, needs: Needs) -> bool:
        """Whether an order with these needs would be begun now."""

    @abstractmethod
    def start(self, order: Order, avoid: str | None = None) -> None:
        """Begin an order; not on the worker named, where there is another."""

    @abstractmethod
    def wait(self, seconds: float) -> list[Event]:
        """What has happened since; after so many seconds, if nothing has, an empty list."""

    @abstractmethod
    def stop(self) -> None:
        """Ask every order to save and end; `wait` tells when they have."""

    @abstractmethod
    def close(self) -> None:
        """End whatever is left, at once."""
