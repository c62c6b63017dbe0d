"""Worker processes on this machine, started when they are needed; each takes one job after another.

Jobs arrive on the standard input of a process, one per line, and its messages leave on standard output.
"""

from __future__ import annotations

import json
import os
import queue
import selectors
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path

import kcl
from kcl.core.opening import regular
from kcl.engines.engine import Engine, Event, Job, Message, Needs, RunningJob
from kcl.engines.worker import run_job
from kcl.training.stopping import Stop

START = """import sys
if sys.argv[1] not in sys.path:
    sys.path.insert(0, sys.argv[1])
from kcl.engines.local_workers import main
main()
"""


def main() -> None:
    """What a worker process executes. The end of its input asks it to save and end: it never outlives the command."""
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # whatever packages print goes to the log
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the command
    stop, waiting = Stop(), queue.SimpleQueue[str | None]()

    def listen() -> None:
        for line in sys.stdin:
            waiting.put(line)
        stop.signal = signal.SIGTERM
        waiting.put(None)

    def send(message: Message) -> None:
        try:
            out.write(json.dumps(message) + "\n")
            out.flush()
        except BrokenPipeError:
            stop.signal = signal.SIGTERM

    threading.Thread(target=listen, daemon=True).start()
    while (line := waiting.get()) is not None and stop.signal is None:
        run_job(Job.from_json(line), send, stop)
    os._exit(0)  # the listening thread may block on standard input


class WorkerProcess:
    """One worker process; what it prints goes to its own log."""

    def __init__(self, name: str, logs: Path, threads: int, program: str) -> None:
        self.name, self.log = name, logs / f"{name}.log"
        self.running: RunningJob | None = None
        root = str(Path(kcl.__file__).parents[1])
        environment = os.environ | {"OMP_NUM_THREADS": str(threads)}
        with open(self.log, "ab", opener=regular) as log:
            self.process = subprocess.Popen(  # noqa: S603 - our own code
                [sys.executable, "-P", "-c", program, root],  # -P: import nothing from the current folder
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env=environment,
                start_new_session=True,  # Ctrl-C in a terminal reaches only the command
            )
        assert self.process.stdin is not None  # noqa: S101 - both are pipes
        assert self.process.stdout is not None  # noqa: S101
        self.stdin, self.stdout = self.process.stdin, self.process.stdout
        os.set_blocking(self.stdout.fileno(), False)
        self.alive = True

    def give(self, job: Job) -> None:
        self.running = RunningJob(job, self.name)
        with suppress(BrokenPipeError):  # it has died; `events` will show that
            self.stdin.write(job.to_json().encode() + b"\n")
            self.stdin.flush()

    def events(self) -> list[Event]:
        blocks: list[bytes] = []
        with suppress(BlockingIOError):  # there is nothing more to read
            while block := os.read(self.stdout.fileno(), 1 << 20):
                blocks.append(block)
            self.alive = False
        if self.running is None:
            return []
        events = self.running.read(b"".join(blocks))
        if self.running.end is None and not self.alive:
            code = self.process.wait()
            death = f"was killed by signal {-code}" if code < 0 else f"ended with code {code}"
            events += self.running.lost(f"the process {death}", f"see {self.log}")
        if self.running.end is not None:
            self.running = None
        return events

    def close_input(self) -> None:
        with suppress(BrokenPipeError):
            self.stdin.close()

    def close(self) -> None:
        self.close_input()
        self.process.kill()
        self.process.wait()
        self.stdout.close()
        with suppress(OSError):
            if self.log.stat().st_size == 0:
                self.log.unlink()


class LocalWorkers(Engine):
    """The requested number of worker processes."""

    program = START

    def __init__(self, workers: int, logs: Path, threads: int = 1) -> None:
        self.workers, self._logs, self._threads = workers, logs, threads
        self._processes: list[WorkerProcess] = []
        self._started = 0
        self._selector = selectors.DefaultSelector()
        logs.mkdir(parents=True, exist_ok=True)

    def room(self, needs: Needs) -> bool:  # noqa: ARG002 - the user decides how many there are
        return sum(worker.running is not None for worker in self._processes) < self.workers

    def start(self, job: Job, avoid: str | None = None) -> None:
        idle = [worker for worker in self._processes if worker.running is None and worker.name != avoid]
        if not idle and len(self._processes) >= self.workers:
            self._drop(next(worker for worker in self._processes if worker.running is None))  # the one to avoid
        (idle[0] if idle else self._add()).give(job)

    def wait(self, seconds: float) -> list[Event]:
        events: list[Event] = []
        for key, _ in self._selector.select(seconds):
            worker: WorkerProcess = key.data
            events += worker.events()
            if not worker.alive:
                self._drop(worker)
        return events

    def stop(self) -> None:
        for worker in self._processes:
            worker.close_input()

    def close(self) -> None:
        for worker in list(self._processes):
            self._drop(worker)
        self._selector.close()
        with suppress(OSError):
            self._logs.rmdir()  # only if it is empty

    def _add(self) -> WorkerProcess:
        self._started += 1
        worker = WorkerProcess(f"worker-{self._started}", self._logs, self._threads, self.program)
        self._processes.append(worker)
        self._selector.register(worker.stdout, selectors.EVENT_READ, worker)
        return worker

    def _drop(self, worker: WorkerProcess) -> None:
        self._selector.unregister(worker.stdout)
        self._processes.remove(worker)
        worker.close()
