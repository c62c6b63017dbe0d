"""The dispatcher with an engine that is only pretended: what is begun when, tried again how often, kept once."""

from __future__ import annotations

import itertools
import time
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from kcl.cli.execution import describe_failures
from kcl.engines.dispatcher import Dispatcher, take
from kcl.engines.engine import Engine, Worker
from kcl.engines.job import Job, Message, Needs
from kcl.engines.status import JobState, StatusTracker
from kcl.errors import KclError
from kcl.experiments.group_training import Failure
from kcl.experiments.resuming import resume_command
from kcl.training.stopping import Interrupted, Stop


def _job(number: int, length: float = 1.0, needs: Needs = Needs(), runs: int = 1) -> Job:  # noqa: B008
    return Job([{"number": number, "place": place} for place in range(runs)], "out", length=length,
                 needs=needs)  # fmt: skip


class PretendedWorker(Worker):
    def __init__(self, engine: Pretended, needs: Needs) -> None:
        engine.hired += 1
        super().__init__(f"worker-{engine.hired}", needs)
        self.node, self.engine, self.stopped = f"node-{engine.hired}", engine, False

    def do(self, job: Job) -> Iterator[Message]:
        self.engine.started.append((job.runs[0]["number"], self.node))
        self.engine.most_busy = max(self.engine.most_busy, len(self.engine.busy) + 1)
        return self.messages(job)

    def messages(self, job: Job) -> Iterator[Message]:
        said = self.engine.answers.get(job.runs[0]["number"], [])
        kind = said[job.attempt] if job.attempt < len(said) else "done"
        if kind == "waits":
            while not self.stopped:
                time.sleep(0.01)
            kind = "stopped"
        if kind.startswith("further"):
            task = int(kind.removeprefix("further "))
            yield {"kind": "progress", "task": task, "tasks": 9, "step": None, "runs": []}
            kind = "lost"
        if kind in ("done", "half"):
            for run in job.runs if kind == "done" else job.runs[:1]:
                yield {"kind": "record", "record": dict(run)}
            kind = "done" if kind == "done" else "lost"
        yield {"kind": kind, "error": "it fell", "checkpoints": []}

    def stop(self) -> None:
        self.stopped = True

    def close(self) -> None: ...


class Pretended(Engine):
    """Workers with so many CPUs in all; each attempt at a job ends as `answers` has it."""

    def __init__(self, cpus: int, answers: dict[int, list[str]] | None = None) -> None:
        super().__init__()
        self.cpus, self.answers = cpus, answers or {}
        self.started: list[tuple[int, str]] = []
        """The jobs, and where."""
        self.hired = self.most_busy = 0

    def room(self, needs: Needs) -> bool:
        return sum(worker.needs.cpus for worker in self.busy) + needs.cpus <= self.cpus

    def hire(self, needs: Needs, avoid: str | None) -> Worker:
        return PretendedWorker(self, needs)


class Kept(StatusTracker):
    """A tracker with a store that checks its counts."""

    def __init__(self, total: int) -> None:
        super().__init__(total, lambda job: f"run {job.runs[0]['number']}")
        self.records: dict[str, dict[str, Any]] = {}
        self.no_room_for: list[list[Needs]] = []
        self.after_tick: Any = None

    def store(self, records: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        new = {str(own): own for own in records if str(own) not in self.records}
        self.records |= new
        return list(new.values())

    def tick(self, stuck: Collection[Needs]) -> None:
        if stuck:
            self.no_room_for.append(list(stuck))
        counts = self.counts()
        assert sum(counts.values()) == self.total
        assert min(counts.values()) >= 0
        assert counts["done"] == len(self.records)
        if self.after_tick is not None:
            self.after_tick()


def _dispatched(tmp_path: Path, engine: Pretended, jobs: list[Job], retries: int = 2) -> tuple[Kept, list[Failure]]:
    kept, dispatcher = Kept(sum(len(job.runs) for job in jobs)), Dispatcher(engine, retries)
    failures = dispatcher.run(jobs, kept.store, kept, tmp_path / "logs")
    dispatcher.close()
    return kept, failures


def test_the_longest_are_begun_first_as_many_as_there_is_room_for(tmp_path: Path) -> None:
    engine = Pretended(3)
    jobs = sorted((_job(number, length=number) for number in range(10)), key=lambda job: -job.length)
    kept, failures = _dispatched(tmp_path, engine, jobs)
    assert [number for number, _ in engine.started] == list(range(9, -1, -1))
    assert engine.most_busy == 3
    assert engine.hired == 3, "they are used again"
    assert (len(kept.records), failures) == (10, [])
    assert kept.counts() == {"done": 10, "running": 0, "queued": 0, "failed": 0}


def test_what_needs_more_than_there_is_does_not_keep_back_what_needs_less() -> None:
    large, small = Needs(cpus=8), Needs(cpus=1)
    jobs = [_job(0, 9.0, large), _job(1, 5.0, small), _job(2, 2.0, small)]
    waiting = [JobState(job, 1) for job in jobs]
    taken = [take(waiting, lambda needs: needs.cpus < 8) for _ in range(3)]
    assert [state.job.runs[0]["number"] for state in taken if state] == [1, 2]
    last = take(waiting, lambda _: True)
    assert last is not None
    assert last.job.runs[0]["number"] == 0
    assert waiting == []


def test_where_nothing_has_room_that_is_told_and_waited_for(tmp_path: Path) -> None:
    engine, kept = Pretended(1), Kept(1)

    def grow() -> None:
        engine.cpus += 1

    kept.after_tick = grow
    Dispatcher(engine).run([_job(0, needs=Needs(3))], kept.store, kept, tmp_path)
    assert kept.no_room_for == [[Needs(3)]] * 2
    assert len(kept.records) == 1


def test_failures_are_tried_again_elsewhere_and_given_up_in_the_end(tmp_path: Path) -> None:
    engine = Pretended(2, {3: ["failed", "lost"], 5: ["failed"] * 9})
    kept, failures = _dispatched(tmp_path, engine, [_job(number) for number in range(7)])
    assert len(kept.records) == 6
    [failure] = failures
    assert (failure.label, failure.runs, failure.error) == ("run 5", 1, "it fell")
    log = failure.log.read_text()
    assert [f"attempt {attempt} on worker-" in log for attempt in (1, 2, 3, 4)] == [True, True, True, False]
    nodes = [node for number, node in engine.started if number == 5]
    assert len(nodes) == 3
    assert all(node != before for before, node in itertools.pairwise(nodes))
    assert kept.counts()["failed"] == 1


def test_an_attempt_that_came_further_was_not_in_vain(tmp_path: Path) -> None:
    """Preempted after every task, a run comes to its end; one that falls at the same task does not go on for ever."""
    engine = Pretended(1, {0: [f"further {task}" for task in range(6)], 1: ["further 2"] * 9})
    kept, failures = _dispatched(tmp_path, engine, [_job(0), _job(1)])
    assert [record["number"] for record in kept.records.values()] == [0]
    assert [failure.label for failure in failures] == ["run 1"]
    assert [number for number, _ in engine.started].count(1) == 4


def test_a_result_that_arrives_twice_is_kept_once(tmp_path: Path) -> None:
    engine = Pretended(1, {0: ["half"]})
    kept, failures = _dispatched(tmp_path, engine, [_job(0, runs=3)])
    assert (len(kept.records), kept.counts()["done"], failures) == (3, 3, [])


def test_a_signal_stops_all_and_is_passed_on(tmp_path: Path) -> None:
    engine, stop, kept = Pretended(2, {number: ["waits"] for number in range(4, 9)}), Stop(), Kept(9)

    def ask() -> None:
        if kept.counts()["done"] >= 4:
            stop.signal = 2

    kept.after_tick = ask
    dispatcher = Dispatcher(engine, stop=stop)
    with pytest.raises(Interrupted):
        dispatcher.run([_job(number) for number in range(9)], kept.store, kept, tmp_path)
    dispatcher.close()
    assert len(kept.records) == 4
    assert len(engine.started) <= 6, "no other was begun"


def test_what_an_engine_refuses_beside_others_waits_until_one_has_ended(tmp_path: Path) -> None:
    class OneAtATime(Pretended):
        def hire(self, needs: Needs, avoid: str | None) -> Worker:
            if self.busy:
                raise KclError("there is a limit")
            return super().hire(needs, avoid)

    kept, failures = _dispatched(tmp_path, OneAtATime(9), [_job(number) for number in range(4)])
    assert (len(kept.records), failures) == (4, [])


def test_messages_that_cannot_be_read_cost_an_attempt(tmp_path: Path) -> None:
    class Broken(PretendedWorker):
        def messages(self, job: Job) -> Iterator[Message]:
            yield {"kind": "say", "text": "it begins"}
            raise ValueError("not JSON")

    class Engine(Pretended):
        def hire(self, needs: Needs, avoid: str | None) -> Worker:
            return (PretendedWorker if self.hired else Broken)(self, needs)

    kept, failures = _dispatched(tmp_path, Engine(1), [_job(0)])
    assert (len(kept.records), failures) == (1, [])


def test_what_failed_is_listed_with_how_to_try_again() -> None:
    failures = [Failure(f"run {number}", 2, "it fell", Path("logs/x.log")) for number in range(25)]
    text = describe_failures(failures, resume_command("kcl run a --out 'b c'"))
    assert text.startswith("50 runs failed:\n  run 0: it fell; log: logs/x.log")
    assert "and 5 more groups" in text
    assert text.endswith("to try them again: kcl run a --out 'b c' --resume")
    assert describe_failures(failures[:1], resume_command("kcl run a --resume")).endswith(": kcl run a --resume")


def test_orders_are_the_same_after_they_have_been_json() -> None:
    job = _job(4, 2.5, Needs(2, 0.25), runs=2).next_attempt()
    assert Job.from_json(job.to_json()) == job
    assert job.name == _job(4, runs=2).name
    assert job.name != _job(5, runs=2).name


class TestStatusTracker:
    def test_time_left_follows_what_is_done(self) -> None:
        now = [0.0]
        jobs = [_job(0, 30.0), _job(1, 10.0)]
        tracker = StatusTracker(2, str, lambda: now[0])
        first, _ = tracker.jobs_queued(jobs)
        assert tracker.seconds_left() is None
        now[0] = 5.0
        message = {"kind": "progress", "task": 0, "tasks": 3, "step": [5, 10, 0.1]}
        tracker.job_progressed(first, "a", message)
        assert tracker.seconds_left() == pytest.approx(5.0 / 5.0 * 35.0)
        now[0] = 30.0
        tracker.result_stored(first, "a", {"average_accuracy": 80.0})
        first.phase = "done"
        tracker.job_ended(first, "a", {"kind": "done"})
        assert tracker.seconds_left() == pytest.approx(10.0)
        assert tracker.average_accuracy() == 80.0
        assert tracker.to_dict()["workers"] == [
            {"worker": "a", "runs": 1, "runs_per_hour": pytest.approx(3600 / 25.0), "doing": ""}
        ]
