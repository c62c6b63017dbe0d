"""Work side by side: in which order streams wait for each other. What they do on a GPU is in `test_device.py`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch

from kcl.ops import streams

DEVICE = torch.device("cuda", 0)


class _Stream:
    """Tells of every wait."""

    def __init__(self, name: str, told: list[str], priority: int = 0) -> None:
        self.name, self.told, self.priority = name, told, priority

    def wait_stream(self, other: _Stream) -> None:
        self.told.append(f"{self.name} waits for {other.name}")


Told = tuple[list[str], Callable[[int], None]]
"""What happened, and work that tells where it is done."""


def _forget() -> None:
    streams._streams.cache_clear()
    streams.passing.cache_clear()


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> Iterator[Told]:
    found: list[str] = []
    present, entered, made = _Stream("present", found), [], []

    def make(_: Any, priority: int = 0) -> _Stream:
        made.append(_Stream(f"side {len(made)}", found, priority))
        return made[-1]

    @contextmanager
    def enter(stream: _Stream) -> Any:
        entered.append(stream)
        yield
        entered.pop()

    monkeypatch.setattr(torch.cuda, "Stream", make)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda _: present)
    monkeypatch.setattr(torch.cuda, "stream", enter)
    monkeypatch.setattr(streams, "STREAMS", 2)
    _forget()
    yield found, lambda number: found.append(f"{number} on {entered[-1].name if entered else 'present'}")
    _forget()


def test_all_begin_after_the_present_and_end_before_it_goes_on(told: Told) -> None:
    streams.side_by_side(DEVICE, "a purpose", 3, told[1])
    assert told[0] == [
        "side 0 waits for present", "side 1 waits for present", "0 on side 0", "1 on side 1", "2 on side 0",
        "present waits for side 0", "present waits for side 1",
    ]  # fmt: skip


def test_one_piece_stays_where_it_is(told: Told) -> None:
    streams.side_by_side(DEVICE, "a purpose", 1, told[1])
    assert told[0] == ["0 on present"]


def test_what_is_only_begun_is_waited_for_by_others(told: Told) -> None:
    sides = streams.begin(DEVICE, "a purpose", 1, told[1])
    assert told[0] == ["side 0 waits for present", "0 on side 0"]
    assert [side.name for side in sides] == ["side 0"]
    again = streams.begin(DEVICE, "a purpose", 2, lambda _: None)
    assert again[0] is sides[0]
    assert streams.begin(DEVICE, "another", 1, lambda _: None)[0] not in again


@pytest.mark.usefixtures("told")
def test_what_a_pass_waits_for_goes_before_the_rest() -> None:
    """A lower number goes first."""
    inputs, beside = (streams.begin(DEVICE, purpose, 2, lambda _: None) for purpose in (streams.INPUTS, "weights"))
    assert {own.priority for own in [*inputs, streams.passing(DEVICE)]} == {-1}
    assert {own.priority for own in beside} == {0}
