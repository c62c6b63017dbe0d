"""What distributing runs costs, and how far it goes.

python benches/scale.py simulate [--runs N] [--workers N]   the dispatcher and the store, with workers only pretended
python benches/scale.py efficiency                          worker processes with stand-ins for runs, 1, 2 and 4 of them
python benches/scale.py overhead                            `kcl run` against calling the learner
"""

from __future__ import annotations

import argparse
import heapq
import json
import os
import random
import resource
import statistics
import tempfile
import time
from collections.abc import Collection, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import torch

from kcl.benchmarks.registry import find_benchmark
from kcl.core import results
from kcl.core.devices import Compute
from kcl.core.metrics import AccuracyMatrix
from kcl.engines.dispatcher import Dispatcher, Event
from kcl.engines.engine import Engine, Worker
from kcl.engines.job import Job, Needs
from kcl.engines.local_workers import LocalWorkers
from kcl.engines.status import JobState, StatusTracker
from kcl.experiments.admission import admit
from kcl.experiments.group_training import Experiment, remaining_groups, train_group
from kcl.experiments.run_folder import Folder
from kcl.experiments.run_spec import RunSpec
from kcl.methods.recipes import find_method, published_backbone, published_settings
from kcl.training.stream_run import run_streams

TASKS = 20


class Tracker(StatusTracker):
    """The status, computed now and then and shown to nobody."""

    def __init__(self, total: int) -> None:
        super().__init__(total, lambda job: job.name)
        self.ticks = 0

    def tick(self, stuck: Collection[Needs]) -> None:  # noqa: ARG002
        self.ticks += 1
        if self.ticks % 100 == 0:
            self.to_dict()


class Nowhere(Engine):
    one_job_each = True

    def hire(self, needs: Needs, avoid: str | None) -> NoReturn:
        raise NotImplementedError


class PretendedWorker(Worker):
    def do(self, job: Job) -> NoReturn:
        raise NotImplementedError

    def stop(self) -> None: ...

    def close(self) -> None: ...


class Pretended(Dispatcher):
    """Workers in a time of their own: a job takes its length in seconds; one in a hundred fails."""

    def __init__(self, workers: int, made: dict[str, list[dict[str, Any]]]) -> None:
        super().__init__(Nowhere(workers))
        self._free, self.now, self.busy = [PretendedWorker(f"worker-{n}", Needs()) for n in range(workers)], 0.0, 0.0
        self._made, self._heap, self._count = made, list[tuple[float, int, JobState, Worker]](), 0
        self._random = random.Random(0)

    def _begin(self, state: JobState) -> None:
        self._count += 1
        worker = self._running[state] = self._free.pop()
        heapq.heappush(self._heap, (self.now + state.job.length, self._count, state, worker))
        self.busy += state.job.length

    def _receive(self, seconds: float) -> list[Event]:
        """All that ends within so many seconds of the first to end."""
        events: list[Event] = []
        until = self._heap[0][0] + seconds
        while self._heap and self._heap[0][0] <= until:
            self.now, _, state, worker = heapq.heappop(self._heap)
            self._free.append(worker)
            for task in range(TASKS):
                told = {"kind": "progress", "task": task, "tasks": TASKS, "step": None, "runs": []}
                events.append(Event(state, worker, told))
            if self._random.random() < 0.01 and state.job.attempt == 0:
                events.append(Event(state, worker, {"kind": "lost", "error": "pretended"}))
                continue
            for record in self._made[state.job.name]:
                events.append(Event(state, worker, {"kind": "record", "record": record}))
            events.append(Event(state, worker, {"kind": "done", "checkpoints": []}))
        return events


def records(specs: Sequence[RunSpec]) -> list[dict[str, Any]]:
    """Results as runs leave them: 20 tasks, every field; a few matrices stand for all."""
    pool = []
    for number in range(50):
        drawn = np.random.default_rng(number).integers(5000, 9500, (TASKS, TASKS)) / 100
        matrix = AccuracyMatrix.from_lists(np.where(np.tri(TASKS, k=1) > 0, drawn, None).tolist())
        pool.append({"accuracy_matrix": matrix.to_lists(), **matrix.summary([10.0] * TASKS)})
    versions = {"kcl": "0", "torch": "0", "numpy": "0", "python": "0"}
    rest = {"versions": versions, "device": "cpu", "threads": 1, "seconds": 80.0, "learning_seconds": [4.0] * TASKS,
            "runs_at_once": 1, "precision": "float32", "initial_accuracy": [10.0] * TASKS, "diverged": False,
            "memory": {"samples": 4000, "bytes": 3_000_000}, "resumed": 0, "fingerprint": "0" * 64,
            "command": "kcl run"}  # fmt: skip
    return [
        {"format": results.FORMAT, **spec.fields(), "kernel": "vrf", **rest, **pool[place % len(pool)]}
        for place, spec in enumerate(specs)
    ]


def megabytes() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def simulate(count: int, workers: int) -> None:
    """A grid over learning rates and seeds, each run a job of its own, of 60 to 100 seconds. Times are CPU times."""
    base, rng, begun = published_settings("permuted-mnist", "kcl"), random.Random(1), time.process_time()
    settings = [base.replace(lr=round(0.001 * (1 + number), 6)) for number in range(max(1, count // 100))]
    specs = [RunSpec("permuted-mnist", "kcl", seed, own, TASKS) for own in settings for seed in range(100)][:count]
    pairs = [(Job([spec.fields()], "out", length=rng.uniform(60, 100)), spec) for spec in specs]
    pairs.sort(key=lambda pair: -pair[0].length)
    jobs = [job for job, _ in pairs]
    made = {job.name: [record] for job, record in zip(jobs, records([own for _, own in pairs]), strict=True)}
    told: dict[str, Any] = {"runs": count, "workers": workers, "jobs made": seconds_since(begun)}
    told["memory before, MB"] = round(megabytes())
    with tempfile.TemporaryDirectory() as name:
        out = Path(name)
        folder, begun = Folder(out, resume=False), time.process_time()
        folder.begin(specs, "kcl run")
        told["settings.json, s"], told["settings.json, MB"] = seconds_since(begun), size(out / "settings.json")
        dispatcher, tracker = Pretended(workers, made), Tracker(count)
        begun, wall = time.process_time(), time.perf_counter()
        dispatcher.run(jobs, folder.add, tracker, out / "logs")
        took, wall = time.process_time() - begun, time.perf_counter() - wall
        told |= {"dispatched and kept, s": round(took, 1), "runs a second": round(count / took)}
        told["the same by the wall clock, s"] = round(wall, 1)
        told["messages a second"] = round(count * (TASKS + 2) / took)
        told["results.jsonl, MB"], told["memory after, MB"] = size(out / "results.jsonl"), round(megabytes())
        told["workers busy, %"] = round(100 * dispatcher.busy / (dispatcher.now * workers), 2)
        told["of pretended hours"] = round(dispatcher.now / 3600, 2)
        told["kept"] = len(folder.finished)
        begun = time.process_time()
        again = Folder(out, resume=True)
        left = [spec for spec in specs if spec.key not in again.finished]
        again.begin(specs, "kcl run")
        told["found again with --resume, s"], told["left to do"] = seconds_since(begun), len(left)
    print(json.dumps(told, indent=2))


def seconds_since(begun: float) -> float:
    """Of this process's own time: others may be on the machine."""
    return round(time.process_time() - begun, 1)


def size(path: Path) -> float:
    return round(path.stat().st_size / 1e6, 1)


STAND_IN = """
import sys, time
sys.path.append(sys.argv[1])
import kcl.engines.local_workers as local_workers

def run_job(job, send, stop):
    kind, amount = job.runs[0]["kind"], job.runs[0]["amount"]
    if kind == "computing":
        value = 0
        for number in range(int(amount)):
            value = (value * 31 + number) % 1000003
    else:
        time.sleep(amount)
    send({"kind": "done", "checkpoints": []})

local_workers.run_job = run_job
local_workers.main()
"""


class StandIns(LocalWorkers):
    """Worker processes that compute, or wait, in place of runs."""

    program = STAND_IN


def efficiency(jobs: int) -> None:
    """Time for the same work with 1, 2 and 4 workers; they are started, and warm, before the clock is."""
    rows = []
    for kind, amount in (("computing", 4_000_000), ("waiting", 0.3)):
        for workers in (1, 2, 4):
            with tempfile.TemporaryDirectory() as name:
                engine = StandIns(workers)
                engine.open(Path(name) / "logs")
                dispatcher = Dispatcher(engine)
                _dispatch(dispatcher, "waiting", 0.5, 4 * workers, Path(name))  # warm
                begun = time.perf_counter()
                _dispatch(dispatcher, kind, amount, jobs, Path(name))
                rows.append((kind, workers, time.perf_counter() - begun))
                dispatcher.close()
    single = {kind: took for kind, workers, took in rows if workers == 1}
    print(f"{jobs} stand-ins for runs; {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}")
    for kind, workers, took in rows:
        gain = single[kind] / took
        print(f"{kind:10} {workers} workers: {took:6.2f} s, {gain:.2f} times one, efficiency {gain / workers:.0%}")


def _dispatch(dispatcher: Dispatcher, kind: str, amount: float, count: int, folder: Path) -> None:
    jobs = [Job([{"kind": kind, "amount": amount, "number": number}], "") for number in range(count)]
    dispatcher.run(jobs, list, Tracker(count), folder)


def overhead(pairs: int) -> None:
    """CPU time of the same run, both ways in turn: as `kcl run` does it in this process, and the learner alone."""
    torch.set_num_threads(1)
    settings = published_settings("permuted-digits", "kcl")
    spec = RunSpec("permuted-digits", "kcl", 0, settings, tasks=5)
    dataset = find_benchmark(spec.benchmark).load(None, print)
    took: dict[str, list[float]] = {"direct": [], "local": []}
    for pair in range(pairs):
        for way in sorted(took, reverse=bool(pair % 2)):  # each goes first as often as the other
            begun = time.process_time()
            if way == "direct":
                stream = find_benchmark(spec.benchmark).stream(dataset, tasks=5, seed=0)
                method = find_method("kcl")(settings, len(stream.class_labels), sum(task.ways for task in stream))
                backbone = partial(published_backbone, stream.input_shape, settings)
                run_streams(RunStack([method], [backbone], [0], plain=True), [stream])
            else:
                with tempfile.TemporaryDirectory() as name:
                    names = {("permuted-digits", None, None): dataset}
                    plan = admit([spec], Compute(), datasets=names)
                    experiment = Experiment(plan, Folder(Path(name), resume=False), say=print)
                    for group in remaining_groups(experiment):
                        train_group(experiment, group, lambda _: lambda _: None)
            took[way].append(time.process_time() - begun)
    ratios = [local / direct for local, direct in zip(took["local"], took["direct"], strict=True)]
    least = {way: min(times) for way, times in took.items()}
    print(f"local / direct, CPU time of {pairs} pairs: least {least['local']:.3f} s / {least['direct']:.3f} s = "
          f"{least['local'] / least['direct']:.4f}; median of the ratios {statistics.median(ratios):.4f}, "
          f"from {min(ratios):.4f} to {max(ratios):.4f}")  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("simulate", "efficiency", "overhead"))
    parser.add_argument("--runs", type=int, default=100_000)
    parser.add_argument("--workers", type=int, default=1000)
    parser.add_argument("--jobs", type=int, default=48)
    parser.add_argument("--pairs", type=int, default=7)
    options = parser.parse_args()
    if options.what == "simulate":
        simulate(options.runs, options.workers)
    elif options.what == "efficiency":
        efficiency(options.jobs)
    else:
        overhead(options.pairs)


if __name__ == "__main__":
    main()
