"""The dispatcher with an engine that is only pretended: what is begun when, tried again how often, kept once."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any, NoReturn

import pytest

from kcl.cli.execution import describe_failures
from kcl.engines.dispatcher import Dispatcher, JobState, StatusTracker, take
from kcl.engines.engine import Engine, Event, Job, Needs
from kcl.experiments.group_training import Failure
from kcl.training.stopping import Interrupted, Stop


def _job(number: int, length: float = 1.0, needs: Needs = Needs(), runs: int = 1) -> Job:  # noqa: B008
    return Job([{"number": number, "place": place} for place in range(runs)], "kcl run", "out", length=length,
                 needs=needs)  # fmt: skip


class Pretended(Engine):
    """`workers` jobs at once; each ends at the next look, as `answers` has it for every attempt."""

    def __init__(self, workers: int, answers: dict[int, list[str]] | None = None) -> None:
        self.workers, self.answers = workers, answers or {}
        self.running: list[tuple[Job, str]] = []
        self.started: list[tuple[int, str | None]] = []
        self.most = 0
        self.stopped = False

    def hire(self, needs: Needs, avoid: str | None) -> NoReturn:
        raise NotImplementedError

    def room(self, needs: Needs) -> bool:
        used = sum(job.needs.cpus for job, _ in self.running)
        return used + needs.cpus <= self.workers

    def start(self, job: Job, avoid: str | None = None) -> None:
        self.started.append((job.runs[0]["number"], avoid))
        self.running.append((job, f"worker-{len(self.started)}"))
        self.most = max(self.most, len(self.running))

    def wait(self, seconds: float) -> list[Event]:
        events = []
        for job, worker in self.running:
            number = job.runs[0]["number"]
            said = self.answers.get(number, [])
            kind = "stopped" if self.stopped else said[job.attempt] if job.attempt < len(said) else "done"
            if kind.startswith("further"):
                task = int(kind.removeprefix("further "))
                progress = {"kind": "progress", "task": task, "tasks": 9, "step": None, "runs": []}
                events.append(Event(job.name, worker, progress))
                kind = "lost"
            if kind in ("done", "half"):
                runs = job.runs if kind == "done" else job.runs[:1]
                events += [Event(job.name, worker, {"kind": "record", "record": dict(run)}) for run in runs]
                kind = "done" if kind == "done" else "lost"
            events.append(Event(job.name, worker, {"kind": kind, "error": "it fell", "checkpoints": []}))
        self.running.clear()
        return events

    def stop(self) -> None:
        self.stopped = True

    def close(self) -> None:
        pass


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
    kept = Kept(sum(len(job.runs) for job in jobs))
    return kept, Dispatcher(engine, kept.store, kept, tmp_path / "logs", retries).run(jobs)


def test_the_longest_are_begun_first_as_many_as_there_is_room_for(tmp_path: Path) -> None:
    engine = Pretended(3)
    jobs = sorted((_job(number, length=number) for number in range(10)), key=lambda job: -job.length)
    kept, failures = _dispatched(tmp_path, engine, jobs)
    assert [number for number, _ in engine.started] == list(range(9, -1, -1))
    assert engine.most == 3
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
    class Growing(Pretended):
        def wait(self, seconds: float) -> list[Event]:
            self.workers += 1
            return super().wait(seconds)

    kept = Kept(1)
    Dispatcher(Growing(1), kept.store, kept, tmp_path).run([_job(0, needs=Needs(3))])
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
    avoided = [avoid for number, avoid in engine.started if number == 5]
    assert avoided[0] is None
    assert None not in avoided[1:]
    assert len(set(avoided)) == 3
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
    engine, stop, kept = Pretended(2), Stop(), Kept(9)

    def ask() -> None:
        if kept.counts()["done"] >= 4:
            stop.signal = 2

    kept.after_tick = ask
    dispatcher = Dispatcher(engine, kept.store, kept, tmp_path, stop=stop)
    with pytest.raises(Interrupted):
        dispatcher.run([_job(number) for number in range(9)])
    assert len(kept.records) == 4
    assert engine.stopped


def test_what_failed_is_listed_with_how_to_try_again() -> None:
    failures = [Failure(f"run {number}", 2, "it fell", Path("logs/x.log")) for number in range(25)]
    text = describe_failures(failures, "kcl run a --out 'b c'")
    assert text.startswith("50 runs failed:\n  run 0: it fell; log: logs/x.log")
    assert "and 5 more groups" in text
    assert text.endswith("to try them again: kcl run a --out 'b c' --resume")
    assert describe_failures(failures[:1], "kcl run a --resume").endswith(": kcl run a --resume")


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
