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
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from kcl.core.opening import regular
from kcl.core.packages import load_package
from kcl.engines.engine import Engine, Worker
from kcl.engines.job import ENDS, Job, Message, Needs
from kcl.engines.worker import run_job
from kcl.errors import KclError
from kcl.training.stopping import Stop

MAX_JOBS = 100
MINUTES = 24 * 60
"""The time limit of a Slurm job unless `time` is set. A job that is cut off is retried from its checkpoint."""
FINAL_WAIT = 4.0
"""Seconds to wait for the last file of submitit."""
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

        node = socket.gethostname()
        send({"kind": "started", "node": node, "worker": f"{node}-{os.getpid()}"})
        run_job(Job.from_json(text), send, stop)


class SlurmWorker(Worker):
    """A job in Slurm's queue or running, and the file of its messages."""

    def __init__(self, engine: SlurmEngine, needs: Needs, exclude: str, path: Path) -> None:
        super().__init__("sbatch", needs)
        self._engine, self._exclude, self._path = engine, exclude, path
        self._ended = self._cancelled = False

    def do(self, job: Job) -> Iterator[Message]:
        self._handle = self._submit(job, self._exclude)
        self.name = f"job {self._handle.job_id}"
        return self._messages()

    def _submit(self, job: Job, exclude: str) -> Any:
        try:
            return self._engine.executor(self.needs, exclude).submit(work, job.to_json(), str(self._path))
        except Exception as error:  # submitit raises its own exceptions with the message of sbatch
            if exclude:  # there may be no other node
                return self._submit(job, "")
            raise KclError(f"the job could not be submitted: {' '.join(str(error).split())[:500]}") from None

    def _messages(self) -> Iterator[Message]:
        position, polls_after_end = 0, 0
        while polls_after_end < 5:  # by then its last message would be in the shared folder
            with self._engine.polling:
                polls_after_end = polls_after_end + 1 if self._handle.done() else 0
            block = b""
            with suppress(FileNotFoundError), self._path.open("rb") as file:
                file.seek(position)
                block = file.read()
            block = block[: block.rfind(b"\n") + 1]
            position += len(block)
            messages = [json.loads(line) for line in block.splitlines()]
            if self._cancelled:  # before it began; Slurm reports that late
                messages = [{"kind": "stopped"}]
            for message in messages:
                self._ended = message["kind"] in ENDS
                yield message
            if self._ended:
                self._remove_files()
                return
            time.sleep(POLL)
        self._ended = True
        yield {
            "kind": "lost",
            "error": f"job {self._handle.job_id} ended ({self._handle.state})",
            "log": f"see {self._handle.paths.stderr}",
        }

    def _remove_files(self) -> None:
        """A job that ran writes one more file after its last message."""
        paths, deadline = self._handle.paths, time.monotonic() + FINAL_WAIT
        while not (self._cancelled or paths.result_pickle.exists()) and time.monotonic() < deadline:
            time.sleep(0.05)
        for path in (self._path, paths.submission_file, paths.submitted_pickle, paths.result_pickle, paths.stderr,
                     paths.stdout):  # fmt: skip
            path.unlink(missing_ok=True)

    def stop(self) -> None:
        (self._path.parent / "stop").touch()
        if not self._path.exists():
            self._handle.cancel(check=False)
            self._cancelled = True

    def close(self) -> None:
        if not self._ended:
            self._handle.cancel(check=False)


class SlurmEngine(Engine):
    """The cluster to which sbatch on this machine submits. `options`: of sbatch."""

    one_job_each = True

    def __init__(
        self, workers: int | None = None, options: Mapping[str, str] | None = None, device: str = "cpu"
    ) -> None:
        super().__init__(workers or MAX_JOBS)
        self.device, self._options = device, dict(options or {})
        self._cluster = self._options.pop("cluster", "slurm")
        self._folder, self._submissions = Path(), 0
        self.polling = threading.Lock()
        """Held while submitit looks at its jobs, of which it keeps one list."""

    def open(self, logs: Path) -> None:
        root = logs.absolute() / "slurm"
        self._folder = root / secrets.token_hex(4)  # a new one, without messages of earlier commands
        self._folder.mkdir(parents=True, exist_ok=True)
        for earlier in root.iterdir():
            if earlier != self._folder and earlier.is_dir():
                (earlier / "stop").touch()  # its command was killed: its Slurm jobs save and end
        self.executor(Needs())  # raises now rather than later

    def hire(self, needs: Needs, avoid: str | None) -> Worker:
        self._submissions += 1
        return SlurmWorker(self, needs, avoid or "", self._folder / f"{self._submissions}.jsonl")

    def close(self) -> None:
        if not self.busy:
            (self._folder / "stop").unlink(missing_ok=True)
        with suppress(OSError):  # not empty: there is something left to read
            for folder in (self._folder, *self._folder.parents[:2]):
                folder.rmdir()

    def executor(self, needs: Needs, exclude: str = "") -> Any:
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
