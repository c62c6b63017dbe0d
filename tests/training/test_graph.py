"""A step's noise drawn beside its beginning, and progress told in chunks: who waits for whom. What a GPU does is in
`cuda/test_device.py`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch

from kcl.training import draws, step_progress
from kcl.training.step_progress import Step

GPU = torch.device("cuda", 0)


class _Stream:
    """Knows what is done for certain before its next work."""

    def __init__(self) -> None:
        self.known: set[str] = set()

    def do(self, work: str) -> None:
        self.known = self.known | {work}

    def wait_stream(self, other: _Stream) -> None:
        self.known = self.known | other.known

    def wait_event(self, event: _Event) -> None: ...

    def synchronize(self) -> None: ...


class _Event:
    def record(self) -> None: ...


class _Device:
    def __init__(self) -> None:
        self.present, self.side = _Stream(), _Stream()
        self.current = self.present

    @contextmanager
    def enter(self, stream: _Stream) -> Iterator[None]:
        before, self.current = self.current, stream
        yield
        self.current = before


class _Source:
    """Sees that what is drawn anew is no longer needed, and that draws follow one another."""

    def __init__(self, device: _Device) -> None:
        self.device, self.step = device, -1

    def draw_uniforms(self) -> None:
        self.step += 1
        if self.step:
            assert {f"step {self.step - 1}", f"others {self.step - 1}"} <= self.device.current.known
        self.device.current.do(f"uniforms {self.step}")

    def draw_others(self) -> None:
        assert f"uniforms {self.step}" in self.device.current.known
        if self.step:
            assert f"step {self.step - 1}" in self.device.current.known, "drawn before its last user was done"
        self.device.current.do(f"others {self.step}")

    def draw(self) -> None:
        self.draw_uniforms()
        self.draw_others()


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> _Device:
    made = _Device()
    monkeypatch.setattr(torch.cuda, "current_stream", lambda _: made.current)
    monkeypatch.setattr(torch.cuda, "stream", made.enter)
    monkeypatch.setattr(draws, "_side", lambda _: made.side)
    return made


@pytest.mark.parametrize("waits", [False, True])
def test_no_step_is_without_its_noise_and_none_loses_it(device: _Device, waits: bool) -> None:
    """`waits`: whether a step uses anything but uniforms."""
    source: Any = _Source(device)
    for number in range(3):
        with draws.drawn_beside(source, GPU) as ready:
            assert f"uniforms {number}" in device.present.known
            assert f"others {number}" in device.side.known - device.present.known
            if waits:
                ready()
                assert f"others {number}" in device.present.known
            device.present.do(f"step {number}")
        assert device.side.known <= device.present.known  # a capture must end with every stream joined


def test_a_cpu_draws_it_all_before_the_step(device: _Device) -> None:
    source: Any = _Source(device)
    with draws.drawn_beside(source, torch.device("cpu")) as ready:
        assert device.present.known == {"uniforms 0", "others 0"}
        ready()
    assert device.side.known == set()


@pytest.mark.parametrize(
    ("sent", "steps", "expected"),
    [
        (0, 60, [20, 40, 60]),
        (0, 45, [20, 40, 45]),
        (0, 20, [20]),
        (0, 7, [7]),
        (33, 27, [40, 60]),
        (33, 10, [40, 43]),
        (40, 20, [60]),
        (0, 0, []),
        (40, 0, []),
        (45, 0, [45]),
    ],
)
def test_progress_is_told_once_for_every_chunk_and_at_the_end(
    monkeypatch: pytest.MonkeyPatch, device: _Device, sent: int, steps: int, expected: list[int]
) -> None:
    """Also of a task that is gone on with, after `sent` steps."""
    reports: list[Step] = []
    monkeypatch.setattr(step_progress, "CHUNK", 20)
    monkeypatch.setattr(torch.cuda, "Stream", lambda _: device.side)
    monkeypatch.setattr(torch.cuda, "Event", _Event)
    watcher = step_progress.Watcher(GPU, torch.arange(60.0)[:, None], reports.append, sent)
    for _ in range(steps):
        watcher.one_more()
    watcher.finish()
    assert [step.step for step in reports] == expected
    assert all(step.loss == step.step - 1 for step in reports)
