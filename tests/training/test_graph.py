"""Steps taken together, their noise drawn ahead, their progress told. What a GPU does is in `cuda/test_device.py`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from kcl.training import graph
from kcl.training.run import Step
from kcl.training.trainer import Trainer

GPU = torch.device("cuda", 0)


class _Stream:
    """Knows what is done for certain before its next work."""

    def __init__(self) -> None:
        self.known: set[str] = set()

    def do(self, work: str) -> None:
        self.known = self.known | {work}

    def record_event(self) -> set[str]:
        return self.known

    def wait_event(self, event: set[str]) -> None:
        self.known = self.known | event

    def wait_stream(self, other: _Stream) -> None:
        self.wait_event(other.known)


class _Source:
    """Sees that what is drawn anew is no longer needed, and that draws follow one another."""

    drawn: list[str]

    def __init__(self, number: int, device: _Device) -> None:
        self.number, self.device = number, device
        self.steps: list[int] = []

    def draw_uniforms(self) -> None:
        if self.steps:
            assert f"step {self.steps[-1]}" in self.device.current.known, "drawn before its last user was done"
        self.steps.append(len(self.device.order))
        self.device.order.append(self.number)
        assert self.steps[-1] == 0 or f"others {self.steps[-1] - 1}" in self.device.current.known
        self._do("uniforms")

    def draw_others(self) -> None:
        assert f"uniforms {self.steps[-1]}" in self.device.current.known
        self._do("others")
        self.drawn = [f"uniforms {self.steps[-1]}", f"others {self.steps[-1]}"]

    def draw(self) -> None:
        self.draw_uniforms()
        self.draw_others()

    def _do(self, kind: str) -> None:
        self.device.current.do(f"{kind} {self.steps[-1]}")


class _Device:
    def __init__(self) -> None:
        self.present, self.side = _Stream(), _Stream()
        self.current, self.order = self.present, list[int]()

    @contextmanager
    def enter(self, stream: _Stream) -> Iterator[None]:
        before, self.current = self.current, stream
        yield
        self.current = before


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> _Device:
    made = _Device()
    monkeypatch.setattr(torch.cuda, "current_stream", lambda _: made.current)
    monkeypatch.setattr(torch.cuda, "stream", made.enter)
    monkeypatch.setattr(graph, "_side", lambda _: made.side)
    return made


@pytest.mark.parametrize("count", [1, 2, 3, 10])
@pytest.mark.parametrize("waits", [False, True])
def test_no_step_is_without_its_noise_and_none_loses_it(device: _Device, count: int, waits: bool) -> None:
    """`waits`: whether a step uses anything but uniforms."""
    sources: Any = [_Source(number, device) for number in range(2)]
    beside = 0
    for number, (drawn, ready) in enumerate(graph.drawn_ahead(sources, count, GPU)):
        uniforms, others = drawn
        assert uniforms == f"uniforms {number}"
        assert uniforms in device.present.known
        beside += f"others {number + 1}" in device.side.known and f"step {number}" not in device.side.known
        if waits:
            ready()
            assert others in device.present.known
        device.present.do(f"step {number}")
    assert beside == count - 1
    assert device.order == [number % 2 for number in range(count)]
    assert device.side.known <= device.present.known  # a capture must end with every stream joined


def test_one_source_serves_steps_taken_one_by_one(device: _Device) -> None:
    source: Any = _Source(0, device)
    for _, ready in graph.drawn_ahead([source], 1, GPU):
        ready()
    assert device.order == [0]


@pytest.mark.parametrize(
    ("device", "plan", "done", "counts"),
    [
        ("cuda", [10] * 8, 0, [4, 4]),
        ("cuda", [10] * 10 + [3], 0, [4, 4, 1, 1, 1]),
        ("cuda", [10] * 10, 10, [1, 1, 4, 4]),  # a second epoch
        ("cuda", [10] * 10, 5, [1, 1, 1, 1, 1]),  # gone on with after five steps
        ("cuda", [10, 10, 10, 7], 0, [1, 1, 1, 1]),
        ("cuda", [10, 10, 6, 6], 0, [1, 1, 1, 1]),
        ("cpu", [10] * 3, 0, [1, 1, 1]),
    ],
)
def test_steps_alike_are_taken_together_from_multiples_of_their_number(
    monkeypatch: pytest.MonkeyPatch, device: str, plan: list[int], done: int, counts: list[int]
) -> None:
    monkeypatch.setattr(graph, "TOGETHER", 4)
    learner = SimpleNamespace(device=torch.device(device))
    trainer: Any = SimpleNamespace(learner=learner, plan=plan, steps_done=done)
    found, begun = [], done % len(plan)
    while begun < len(plan):
        found.append(Trainer._together(trainer, begun))
        begun += found[-1]
        trainer.steps_done += found[-1]
    assert found == counts


class _Event:
    def record(self) -> None: ...


@pytest.mark.parametrize(
    ("sent", "taken", "told"),
    [
        (0, [10] * 6, [20, 40, 60]),
        (0, [10] * 5 + [1] * 5, [20, 40, 55]),
        (0, [1] * 45, [20, 40, 45]),
        (33, [1] * 7 + [10, 10], [40, 60]),
        (0, [15] * 3, [30, 45]),
        (0, [], []),
        (40, [], []),
        (45, [], [45]),
    ],
)
def test_progress_is_told_once_for_every_chunk_and_at_the_end(
    monkeypatch: pytest.MonkeyPatch, sent: int, taken: list[int], told: list[int]
) -> None:
    """However many steps are sent at a time."""
    device, found = _Device(), list[Step]()
    monkeypatch.setattr(graph, "CHUNK", 20)
    monkeypatch.setattr(torch.cuda, "Stream", lambda _: device.side)
    monkeypatch.setattr(torch.cuda, "Event", _Event)
    monkeypatch.setattr(torch.cuda, "stream", device.enter)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda _: device.present)
    monkeypatch.setattr(_Stream, "wait_event", lambda *_: None)
    monkeypatch.setattr(_Stream, "synchronize", lambda _: None, raising=False)
    watcher = graph.Watcher(GPU, torch.arange(60.0)[:, None], found.append, sent)
    for steps in taken:
        watcher.more(steps)
    watcher.finish()
    assert [step.step for step in found] == told
    assert all(step.loss == step.step - 1 for step in found)
