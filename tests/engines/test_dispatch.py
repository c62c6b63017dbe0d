"""The dispatcher with an engine that is only pretended: what is begun when, tried again how often, kept once."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from kcl.engines.dispatcher import Dispatcher, Queue
from kcl.engines.engine import Engine, Event
from kcl.engines.job import Message, Needs, Order
from kcl.engines.retries import Attempts, Failure, listed
from kcl.engines.status_tracker import Board
from kcl.training.stopping import Interrupted, Stop


def _order(number: int, length: float = 1.0, needs: Needs = Needs(), runs: int = 1) -> Order:  # noqa: B008
    return Order([{"number": number, "place": place} for place in range(runs)], "kcl run", "out", length=length,
                 needs=needs)  # fmt: skip


class Pretended(Engine):
    """`workers` orders at once; each ends at the next look, as `answers` has it for every attempt."""

    def __init__(self, workers: int, answers: dict[int, list[str]] | None = None) -> None:
        self.workers, self.answers = workers, answers or {}
        self.running: list[tuple[Order, str]] = []
        self.started: list[tuple[int, str | None]] = []
        self.most = 0
        self.stopped = False

    def room(self, needs: Needs) -> bool:
        used = sum(order.needs.cpus for order, _ in self.running)
        return used + needs.cpus <= self.workers

    def start(self, order: Order, avoid: str | None = None) -> None:
        self.started.append((order.runs[0]["number"], avoid))
        self.running.append((order, f"worker-{len(self.started)}"))
        self.most = max(self.most, len(self.running))

    def wait(self, seconds: float) -> list[Event]:
        events = []
        for order, worker in self.running:
            number = order.runs[0]["number"]
            said = self.answers.get(number, [])
            kind = "stopped" if self.stopped else said[order.attempt] if order.attempt < len(said) else "done"
            if kind.startswith("further"):
                task = int(kind.removeprefix("further "))
                told = {"kind": "progress", "task": task, "tasks": 9, "step": None, "runs": []}
                events.append(Event(order.name, worker, told))
                kind = "lost"
            if kind in ("done", "half"):
                runs = order.runs if kind == "done" else order.runs[:1]
                events += [Event(order.name, worker, {"kind": "record", "record": dict(run)}) for run in runs]
                kind = "done" if kind == "done" else "lost"
            events.append(Event(order.name, worker, {"kind": kind, "error": "it fell", "checkpoints": []}))
        self.running.clear()
        return events

    def stop(self) -> None:
        self.stopped = True

    def close(self) -> None:
        pass


class Kept:
    """A store and a watcher."""

    def __init__(self, total: int) -> None:
        self.records: dict[str, dict[str, Any]] = {}
        self.board = Board(0, total, lambda order: str(order.runs))
        self.stuck_with: list[list[Needs]] = []
        self.after_tick: Any = None

    def store(self, records: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        new = {str(own): own for own in records if str(own) not in self.records}
        self.records |= new
        return list(new.values())

    def queued(self, orders: Sequence[Order]) -> None:
        self.board.expect(orders)

    def started(self, order: Order) -> None:
        self.board.started(order)

    def progressed(self, order: Order, worker: str, message: Message) -> None:
        self.board.progressed(order, worker, message)

    def kept(self, order: Order, worker: str, records: Sequence[dict[str, Any]]) -> None:
        for record in records:
            self.board.kept(order, worker, record)

    def ended(self, order: Order, worker: str, message: Message, again: bool) -> None:
        self.board.ended(order, worker, message["kind"] == "done", again)

    def stuck(self, needs: Sequence[Needs]) -> None:
        self.stuck_with.append(list(needs))

    def tick(self) -> None:
        board = self.board
        assert board.queued + board.running + board.done + board.failed == board.total
        assert min(board.queued, board.running, board.done, board.failed) >= 0
        if self.after_tick is not None:
            self.after_tick()


def _dispatched(tmp_path: Path, engine: Pretended, orders: list[Order], retries: int = 2) -> tuple[Kept, list[Failure]]:
    kept, attempts = Kept(sum(len(order.runs) for order in orders)), Attempts(tmp_path / "logs", retries)
    Dispatcher(engine, kept.store, kept, attempts, lambda order: f"run {order.runs[0]['number']}").run(orders)
    return kept, attempts.given_up


def test_the_longest_are_begun_first_as_many_as_there_is_room_for(tmp_path: Path) -> None:
    engine = Pretended(3)
    orders = sorted((_order(number, length=number) for number in range(10)), key=lambda order: -order.length)
    kept, failures = _dispatched(tmp_path, engine, orders)
    assert [number for number, _ in engine.started] == list(range(9, -1, -1))
    assert engine.most == 3
    assert (len(kept.records), failures) == (10, [])
    assert (kept.board.done, kept.board.running, kept.board.queued) == (10, 0, 0)


def test_what_needs_more_than_there_is_does_not_keep_back_what_needs_less() -> None:
    large, small = Needs(cpus=8), Needs(cpus=1)
    queue = Queue([_order(0, 9.0, large), _order(1, 5.0, small), _order(2, 2.0, small)])
    taken = [queue.take(lambda needs: needs.cpus < 8) for _ in range(3)]
    assert [order.runs[0]["number"] for order in taken if order] == [1, 2]
    assert queue
    last = queue.take(lambda _: True)
    assert last is not None
    assert last.runs[0]["number"] == 0
    assert not queue


def test_where_nothing_has_room_that_is_told_and_waited_for(tmp_path: Path) -> None:
    class Growing(Pretended):
        def wait(self, seconds: float) -> list[Event]:
            self.workers += 1
            return super().wait(seconds)

    kept, attempts = Kept(1), Attempts(tmp_path)
    Dispatcher(Growing(1), kept.store, kept, attempts, str).run([_order(0, needs=Needs(3))])
    assert kept.stuck_with == [[Needs(3)]] * 2
    assert len(kept.records) == 1


def test_failures_are_tried_again_elsewhere_and_given_up_in_the_end(tmp_path: Path) -> None:
    engine = Pretended(2, {3: ["failed", "lost"], 5: ["failed"] * 9})
    kept, failures = _dispatched(tmp_path, engine, [_order(number) for number in range(7)])
    assert len(kept.records) == 6
    [failure] = failures
    assert (failure.label, failure.runs, failure.error) == ("run 5", 1, "it fell")
    log = failure.log.read_text()
    assert [f"attempt {attempt} on worker-" in log for attempt in (1, 2, 3, 4)] == [True, True, True, False]
    avoided = [avoid for number, avoid in engine.started if number == 5]
    assert avoided[0] is None
    assert None not in avoided[1:]
    assert len(set(avoided)) == 3
    assert kept.board.failed == 1


def test_an_attempt_that_came_further_was_not_in_vain(tmp_path: Path) -> None:
    """Preempted after every task, a run comes to its end; one that falls at the same task does not go on for ever."""
    engine = Pretended(1, {0: [f"further {task}" for task in range(6)], 1: ["further 2"] * 9})
    kept, failures = _dispatched(tmp_path, engine, [_order(0), _order(1)])
    assert [record["number"] for record in kept.records.values()] == [0]
    assert [failure.label for failure in failures] == ["run 1"]
    assert [number for number, _ in engine.started].count(1) == 4


def test_a_result_that_arrives_twice_is_kept_once(tmp_path: Path) -> None:
    engine = Pretended(1, {0: ["half"]})
    kept, failures = _dispatched(tmp_path, engine, [_order(0, runs=3)])
    assert (len(kept.records), kept.board.done, failures) == (3, 3, [])


def test_a_signal_stops_all_and_is_passed_on(tmp_path: Path) -> None:
    engine, stop, kept = Pretended(2), Stop(), Kept(9)

    def ask() -> None:
        if kept.board.done >= 4:
            stop.asked = 2

    kept.after_tick = ask
    dispatcher = Dispatcher(engine, kept.store, kept, Attempts(tmp_path), str, stop)
    with pytest.raises(Interrupted):
        dispatcher.run([_order(number) for number in range(9)])
    assert len(kept.records) == 4
    assert engine.stopped


def test_what_failed_is_listed_with_how_to_try_again() -> None:
    failures = [Failure(f"run {number}", 2, "it fell", Path("logs/x.log")) for number in range(25)]
    text = listed(failures, "kcl run a --out 'b c'")
    assert text.startswith("50 runs failed:\n  run 0: it fell; log: logs/x.log")
    assert "and 5 more groups" in text
    assert text.endswith("to try them again: kcl run a --out 'b c' --resume")
    assert listed(failures[:1], "kcl run a --resume").endswith(": kcl run a --resume")


def test_orders_are_the_same_after_they_have_been_json() -> None:
    order = _order(4, 2.5, Needs(2, 0.25), runs=2).again()
    assert Order.from_json(order.to_json()) == order
    assert order.name == _order(4, runs=2).name
    assert order.name != _order(5, runs=2).name


class TestBoard:
    def test_time_left_follows_what_is_done(self) -> None:
        now = [0.0]
        orders = [_order(0, 30.0), _order(1, 10.0)]
        board = Board(0, 2, str, lambda: now[0])
        board.expect(orders)
        board.started(orders[0])
        assert board.seconds_left() is None
        now[0] = 5.0
        told = {"kind": "progress", "task": 0, "tasks": 3, "step": [5, 10, 0.1]}
        board.progressed(orders[0], "a", told)
        assert board.seconds_left() == pytest.approx(5.0 / 5.0 * 35.0)
        now[0] = 30.0
        board.kept(orders[0], "a", {"average_accuracy": 80.0})
        board.ended(orders[0], "a", well=True, again=False)
        assert board.seconds_left() == pytest.approx(10.0)
        assert board.average_accuracy == 80.0
        assert board.to_dict()["workers"] == [
            {"worker": "a", "runs": 1, "runs_per_hour": pytest.approx(3600 / 25.0), "doing": ""}
        ]
