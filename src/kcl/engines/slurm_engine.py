"""Slurm, through submitit: one Slurm job per running job. They communicate with the command through a shared folder.

A Slurm job writes its messages to a file, one line of JSON each; a file named `stop` asks all of them to save and end.
Only submitit, inside the Slurm jobs, reads what it pickled; nothing that a Slurm job wrote is unpickled here.
"""

from __future__ import annotations

import json
import os
import secrets
import shlex
import shutil
import signal
import socket
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from kcl.core.opening import regular
from kcl.core.packages import load_package
from kcl.engines.engine import ENDS, Engine, Event, Job, Message, Needs, RunningJob
from kcl.engines.worker import run_job
from kcl.errors import KclError
from kcl.training.stopping import Stop

MAX_JOBS = 100
MINUTES = 24 * 60
"""The time limit of a Slurm job unless `time` is set. A job that is cut off is retried from its checkpoint."""
FINAL_WAIT = 5.0
"""Seconds to wait for the last files of submitit."""
POLL = 0.5
"""Seconds between two looks at the files of the Slurm jobs."""


def parse_options(assignments: Sequence[str]) -> dict[str, str]:
    """Options of sbatch as NAME=VALUE; `cluster=local` runs the jobs as processes on this machine, for a trial."""
    options = {}
    for assignment in assignments:
        name, equals, value = assignment.partition("=")
        if not equals or not name.replace("_", "").replace("-", "").isalnum():
            raise KclError(f"--slurm {assignment!r}: expected NAME=VALUE, such as --slurm partition=gpu time=120")
        options[name.replace("-", "_")] = value
    if not options.get("time", "1").isdecimal():
        raise KclError(f"--slurm time={options['time']}: expected a number of minutes")
    if options.get("cluster", "slurm") == "slurm" and not (shutil.which("sbatch") and shutil.which("srun")):
        raise KclError("--engine slurm: there is no sbatch here; call kcl on a machine that submits to a Slurm cluster")
    _submitit()
    return options


def work(text: str, messages: str) -> None:
    """What a Slurm job executes. It saves and ends when Slurm signals a time limit or preemption."""
    stop, path = Stop(), Path(messages)

    def request_stop(*_: Any) -> None:
        stop.signal = signal.SIGTERM

    for name in ("SIGUSR2", "SIGTERM"):
        signal.signal(getattr(signal, name), request_stop)
    signal.signal(signal.SIGINT, signal.SIG_IGN)

    def poll() -> None:
        while not (path.parent / "stop").exists():
            time.sleep(POLL)
        request_stop()

    threading.Thread(target=poll, daemon=True).start()
    with open(path, "a", encoding="utf-8", opener=regular) as file:

        def send(message: Message) -> None:
            file.write(json.dumps(message) + "\n")
            file.flush()
            if message["kind"] in (*ENDS, "record"):
                os.fsync(file.fileno())

        send({"kind": "started", "worker": f"{socket.gethostname()}-{os.getpid()}"})
        run_job(Job.from_json(text), send, stop)


class _SlurmJob(RunningJob):
    """A job in Slurm's queue or running, and the file of its messages."""

    def __init__(self, job: Job, handle: Any, path: Path) -> None:
        super().__init__(job, f"job {handle.job_id}")
        self.handle, self.path = handle, path
        self._position, self._ended_polls = 0, 0

    def events(self) -> list[Event]:
        block = b""
        with suppress(FileNotFoundError), self.path.open("rb") as file:
            file.seek(self._position)
            block = file.read()
        self._position += len(block)
        events = self.read(block)
        self._ended_polls = self._ended_polls + 1 if self.handle.done() else 0
        if self.end is None and self._ended_polls > 4:  # by now its last message would be in the shared folder
            error = f"job {self.handle.job_id} ended ({self.handle.state})"
            events += self.lost(error, f"see {self.handle.paths.stderr}")
        return events

    def clear(self) -> None:
        paths = self.handle.paths
        for path in (self.path, paths.submission_file, paths.submitted_pickle, paths.result_pickle, paths.stderr,
                     paths.stdout):  # fmt: skip
            path.unlink(missing_ok=True)


class SlurmEngine(Engine):
    """The cluster to which sbatch on this machine submits. `options`: of sbatch."""

    def __init__(self, logs: Path, workers: int | None = None, options: Mapping[str, str] | None = None) -> None:
        self._max_jobs, self._options = workers or MAX_JOBS, dict(options or {})
        self._cluster = self._options.pop("cluster", "slurm")
        root = logs.absolute() / "slurm"
        self._folder = root / secrets.token_hex(4)  # a new one, without messages of earlier commands
        self._jobs: list[_SlurmJob] = []
        self._held: list[tuple[Job, str | None]] = []
        """Jobs that sbatch refused while others were running; submitted again when one of those ends."""
        self._finishing: list[_SlurmJob] = []
        """Slurm jobs that sent their last message; submitit writes one more file after that."""
        self._submissions, self._stopping = 0, False
        self._folder.mkdir(parents=True, exist_ok=True)
        for earlier in root.iterdir():
            if earlier != self._folder and earlier.is_dir():
                (earlier / "stop").touch()  # its command was killed: its Slurm jobs save and end
        self._executor(Needs())  # raises now rather than later

    def room(self, needs: Needs) -> bool:  # noqa: ARG002 - Slurm has its own queue
        return len(self._jobs) < self._max_jobs and not self._held

    def start(self, job: Job, avoid: str | None = None) -> None:
        self._submissions += 1
        path = self._folder / f"{job.name}-{job.attempt}-{self._submissions}.jsonl"
        try:
            handle = self._submit(job, path, avoid.rpartition("-")[0] if avoid else "")
        except KclError:
            if not self._jobs:
                raise
            self._held.append((job, avoid))  # usually there is a limit on the number of jobs per user
        else:
            self._jobs.append(_SlurmJob(job, handle, path))

    def _submit(self, job: Job, path: Path, exclude: str) -> Any:
        try:
            return self._executor(job.needs, exclude).submit(work, job.to_json(), str(path))
        except Exception as error:  # submitit raises its own exceptions with the message of sbatch
            if exclude:  # there may be no other node
                return self._submit(job, path, "")
            raise KclError(f"the job could not be submitted: {' '.join(str(error).split())[:500]}") from None

    def wait(self, seconds: float) -> list[Event]:
        events = [event for running in self._jobs for event in running.events()]
        ended = [running for running in self._jobs if running.end is not None]
        self._jobs = [running for running in self._jobs if running.end is None]
        self._finishing += [running for running in ended if running.end != "lost"]
        self._clear_finished()
        if self._stopping:
            events += [Event(job.name, "sbatch", {"kind": "stopped"}) for job, _ in self._held]
            self._held.clear()
        elif ended and self._held:
            self.start(*self._held.pop())
        if not events:
            time.sleep(max(seconds, POLL))
        return events

    def _clear_finished(self) -> None:
        for finished in [job for job in self._finishing if job.handle.paths.result_pickle.exists()]:
            finished.clear()
            self._finishing.remove(finished)

    def stop(self) -> None:
        self._stopping = True
        (self._folder / "stop").touch()
        for waiting in [job for job in self._jobs if not job.path.exists()]:  # Slurm reports cancelled jobs late
            waiting.handle.cancel(check=False)
            waiting.clear()
            self._jobs.remove(waiting)
            self._held.append((waiting.job, None))

    def close(self) -> None:
        for running in self._jobs:
            running.handle.cancel(check=False)
        deadline = time.monotonic() + FINAL_WAIT
        while self._finishing and time.monotonic() < deadline:
            self._clear_finished()
            time.sleep(0.05)
        if not self._jobs:
            (self._folder / "stop").unlink(missing_ok=True)
        with suppress(OSError):  # not empty: there is something left to read
            for folder in (self._folder, *self._folder.parents[:2]):
                folder.rmdir()

    def _executor(self, needs: Needs, exclude: str = "") -> Any:
        try:
            # Neither jobs nor submitit's own process import anything from the current folder.
            os.environ["PYTHONSAFEPATH"] = "1"
            python = {f"{self._cluster}_python": f"{shlex.quote(sys.executable)} -P"}
            executor = _submitit().AutoExecutor(folder=self._folder, cluster=self._cluster, **python)
            executor.update_parameters(**self.parameters(needs, exclude))
        except (RuntimeError, ValueError, NameError, TypeError) as error:
            raise KclError(f"--engine slurm cannot be used here: {error}") from None
        return executor

    def parameters(self, needs: Needs, exclude: str = "") -> dict[str, Any]:
        """For submitit: the needs of a job, then the options of the user."""
        from submitit.slurm.slurm import SlurmExecutor

        known = SlurmExecutor._valid_parameters()
        slurm: dict[str, Any] = {"time": int(self._options.get("time", MINUTES)), "job_name": "kcl"}
        slurm |= {"exclude": exclude} if exclude else {}
        slurm |= {name: value for name, value in self._options.items() if name in known and name != "time"}
        unknown = {name: value for name, value in self._options.items() if name not in known}
        slurm |= {"additional_parameters": unknown} if unknown else {}
        general: dict[str, Any] = {"cpus_per_task": needs.cpus, "nodes": 1, "tasks_per_node": 1}
        general |= {"gpus_per_node": 1} if needs.gpus else {}
        return general | {f"slurm_{name}": value for name, value in slurm.items()}


def _submitit() -> Any:
    return load_package("submitit", "slurm", "--engine slurm needs submitit")
