"""Slurm, through submitit: a job for every group in flight. Jobs and whoever gives orders meet in a shared folder.

A job writes what it has to say into a file, a line of JSON each; a file named `stop` asks all of them to save and end.
What submitit pickles it reads itself, in the jobs; nothing that a job left is unpickled here.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import signal
import socket
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from kcl.engines.engine import Engine, Event
from kcl.engines.job import ENDS, Message, Needs, Order
from kcl.engines.worker import do
from kcl.errors import KclError
from kcl.training.stopping import Stop

INSTALL = 'pip install "kernel-continual-learning[slurm]"'
JOBS = 100
MINUTES = 24 * 60
"""How long a job may take unless `time` says otherwise. One that is cut off is tried again, from its checkpoint."""
LEAVING = 5.0
"""Seconds that the last files of jobs are waited for."""
LOOK = 0.5
"""Seconds between two looks at the files of the jobs."""


def parse(assignments: Sequence[str]) -> dict[str, str]:
    """Options of sbatch as NAME=VALUE; `cluster=local` does jobs as processes of this machine, to try it out."""
    given = {}
    for assignment in assignments:
        name, equals, value = assignment.partition("=")
        if not equals or not name.replace("_", "").replace("-", "").isalnum():
            raise KclError(f"--slurm {assignment!r}: expected NAME=VALUE, such as --slurm partition=gpu time=120")
        given[name.replace("-", "_")] = value
    if not given.get("time", "1").isdecimal():
        raise KclError(f"--slurm time={given['time']}: expected a number of minutes")
    if given.get("cluster", "slurm") == "slurm" and not (shutil.which("sbatch") and shutil.which("srun")):
        raise KclError("--engine slurm: there is no sbatch here; call kcl on a machine that submits to a Slurm cluster")
    _submitit()
    return given


def work(text: str, answers: str) -> None:
    """What a job does. A signal of Slurm that its time is over, or that it must make room, asks it to save and end."""
    stop, path = Stop(), Path(answers)

    def ask(*_: Any) -> None:
        stop.asked = signal.SIGTERM

    for name in ("SIGUSR2", "SIGTERM"):
        signal.signal(getattr(signal, name), ask)
    signal.signal(signal.SIGINT, signal.SIG_IGN)

    def look() -> None:
        while not (path.parent / "stop").exists():
            time.sleep(LOOK)
        ask()

    threading.Thread(target=look, daemon=True).start()
    with path.open("a", encoding="utf-8") as file:

        def tell(message: Message) -> None:
            file.write(json.dumps(message) + "\n")
            file.flush()
            if message["kind"] in (*ENDS, "record"):
                os.fsync(file.fileno())

        tell({"kind": "here", "worker": f"{socket.gethostname()}-{os.getpid()}"})
        do(Order.from_json(text), tell, stop)


class _Job:
    """A job in flight, and what it has said so far."""

    def __init__(self, order: Order, job: Any, answers: Path) -> None:
        self.order, self.job, self.answers = order, job, answers
        self.worker, self._read, self._rest, self._gone = f"job {job.job_id}", 0, b"", 0

    def messages(self) -> list[Message]:
        try:
            with self.answers.open("rb") as file:
                file.seek(self._read)
                block = file.read()
        except FileNotFoundError:
            return []
        self._read += len(block)
        *lines, self._rest = (self._rest + block).split(b"\n")
        return [json.loads(line) for line in lines]

    def gone(self) -> bool:
        """Whether it has ended, for so many looks that its last word would have been seen in a shared folder."""
        self._gone = self._gone + 1 if self.job.done() else 0
        return self._gone > 4

    def clear(self) -> None:
        paths = self.job.paths
        for path in (self.answers, paths.submission_file, paths.submitted_pickle, paths.result_pickle, paths.stderr,
                     paths.stdout):  # fmt: skip
            path.unlink(missing_ok=True)


class Slurm(Engine):
    """The cluster that sbatch on this machine submits to. `given`: options of sbatch."""

    def __init__(self, logs: Path, workers: int | None = None, given: Mapping[str, str] | None = None) -> None:
        self._most, self._given = workers or JOBS, dict(given or {})
        self._cluster = self._given.pop("cluster", "slurm")
        root = logs.absolute() / "slurm"
        self._folder = root / secrets.token_hex(4)  # what jobs of an earlier command say is not taken for an answer
        self._jobs: list[_Job] = []
        self._held: list[tuple[Order, str | None]] = []
        """Orders that are no job: sbatch would not take them beside those in flight, and is asked again when one of
        those has ended.
        """
        self._leaving: list[_Job] = []
        """Those that have said their last word; submitit writes a file after that."""
        self._made, self._stopping = 0, False
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            for earlier in root.iterdir():
                if earlier != self._folder and earlier.is_dir():
                    (earlier / "stop").touch()  # whoever asked for its jobs was killed: they save and end
        except OSError as error:
            raise KclError(f"cannot write to {self._folder}: {error.strerror or error}") from None
        self._submitit = _submitit()
        self._executor(Needs())  # refused now rather than later

    def room(self, needs: Needs) -> bool:  # noqa: ARG002 - Slurm's own queue knows what there is room for
        return len(self._jobs) < self._most and not self._held

    def start(self, order: Order, avoid: str | None = None) -> None:
        self._made += 1
        answers = self._folder / f"{order.name}-{order.attempt}-{self._made}.jsonl"
        try:
            job = self._submitted(order, answers, avoid.rpartition("-")[0] if avoid else "")
        except KclError:
            if not self._jobs:
                raise
            self._held.append((order, avoid))  # most often there is a limit to how many jobs a user may have
        else:
            self._jobs.append(_Job(order, job, answers))

    def _submitted(self, order: Order, answers: Path, exclude: str) -> Any:
        try:
            return self._executor(order.needs, exclude).submit(work, order.to_json(), str(answers))
        except Exception as error:  # what sbatch says comes in submitit's own exceptions
            if exclude:  # there may be no other node
                return self._submitted(order, answers, "")
            raise KclError(f"the job could not be submitted: {' '.join(str(error).split())[:500]}") from None

    def wait(self, seconds: float) -> list[Event]:
        events: list[Event] = []
        before = len(self._jobs)
        for own in list(self._jobs):
            for message in own.messages():
                if message["kind"] == "here":
                    own.worker = message["worker"]
                else:
                    events.append(Event(own.order.name, own.worker, message))
            kind = events[-1].message["kind"] if events and events[-1].order == own.order.name else None
            if kind not in ENDS and own.gone():
                told = {"kind": "lost", "error": f"job {own.job.job_id} ended ({own.job.state})"}
                events.append(Event(own.order.name, own.worker, told | {"log": f"see {own.job.paths.stderr}"}))
                kind = "lost"
            if kind in ENDS:
                self._jobs.remove(own)
                self._leaving += [own] if kind != "lost" else []
        self._sweep()
        if self._stopping:
            events += [Event(order.name, "sbatch", {"kind": "stopped"}) for order, _ in self._held]
            self._held.clear()
        elif len(self._jobs) < before and self._held:
            self.start(*self._held.pop())
        if not events:
            time.sleep(max(seconds, LOOK))
        return events

    def _sweep(self) -> None:
        """Remove the files of jobs that have gone."""
        for own in [own for own in self._leaving if own.job.paths.result_pickle.exists()]:
            own.clear()
            self._leaving.remove(own)

    def stop(self) -> None:
        self._stopping = True
        (self._folder / "stop").touch()
        for own in [
            own for own in self._jobs if not own.answers.exists()
        ]:  # not begun; Slurm tells late that it is gone
            own.job.cancel(check=False)
            own.clear()
            self._jobs.remove(own)
            self._held.append((own.order, None))

    def close(self) -> None:
        for own in self._jobs:
            own.job.cancel(check=False)
        until = time.monotonic() + LEAVING
        while self._leaving and time.monotonic() < until:
            self._sweep()
            time.sleep(0.05)
        if not self._jobs:
            (self._folder / "stop").unlink(missing_ok=True)
        with suppress(OSError):  # where nothing is left to be read
            for folder in (self._folder, *self._folder.parents[:2]):
                folder.rmdir()

    def _executor(self, needs: Needs, exclude: str = "") -> Any:
        try:
            executor = self._submitit.AutoExecutor(folder=self._folder, cluster=self._cluster)
            executor.update_parameters(**self.parameters(needs, exclude))
        except (RuntimeError, ValueError, NameError, TypeError) as error:
            raise KclError(f"--engine slurm cannot be used here: {error}") from None
        return executor

    def parameters(self, needs: Needs, exclude: str = "") -> dict[str, Any]:
        """For submitit: what a group needs, then what the user says."""
        from submitit.slurm.slurm import SlurmExecutor

        known = SlurmExecutor._valid_parameters()
        own: dict[str, Any] = {"time": int(self._given.get("time", MINUTES)), "job_name": "kcl"}
        own |= {"exclude": exclude} if exclude else {}
        own |= {name: value for name, value in self._given.items() if name in known and name != "time"}
        more = {name: value for name, value in self._given.items() if name not in known}
        own |= {"additional_parameters": more} if more else {}
        general: dict[str, Any] = {"cpus_per_task": needs.cpus, "nodes": 1, "tasks_per_node": 1}
        general |= {"gpus_per_node": 1} if needs.gpus else {}
        return general | {f"slurm_{name}": value for name, value in own.items()}


def _submitit() -> Any:
    try:
        import submitit
    except ImportError:
        raise KclError(f"--engine slurm needs submitit; install it: {INSTALL}") from None
    return submitit
