"""Worker processes on this machine, started when they are needed.

Jobs arrive on the standard input of a process, one per line, and its messages leave on standard output.
"""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import kcl
from kcl.core.opening import regular
from kcl.engines.engine import Engine, Worker
from kcl.engines.job import ENDS, Job, Message, Needs
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


class LocalWorker(Worker):
    """One worker process; what it prints goes to its own log."""

    def __init__(self, name: str, needs: Needs, logs: Path, threads: int, program: str) -> None:
        super().__init__(name, needs)
        self.log = logs / f"{name}.log"
        root = str(Path(kcl.__file__).parents[1])
        with open(self.log, "ab", opener=regular) as log:
            self.process = subprocess.Popen(  # noqa: S603 - our own code
                [sys.executable, "-P", "-c", program, root],  # -P: import nothing from the current folder
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env=os.environ | {"OMP_NUM_THREADS": str(threads)},
                start_new_session=True,  # Ctrl-C in a terminal reaches only the command
            )
        assert self.process.stdin is not None  # noqa: S101 - both are pipes
        assert self.process.stdout is not None  # noqa: S101
        self.stdin, self.stdout = self.process.stdin, self.process.stdout

    def do(self, job: Job) -> Iterator[Message]:
        with suppress(BrokenPipeError):  # it has died; its messages will show that
            self.stdin.write(job.to_json().encode() + b"\n")
            self.stdin.flush()
        return self._messages()

    def _messages(self) -> Iterator[Message]:
        with suppress(ValueError):  # it died while it wrote a line, or was closed
            for line in self.stdout:
                yield (message := json.loads(line))
                if message["kind"] in ENDS:
                    return
        code = self.process.wait()
        death = f"was killed by signal {-code}" if code < 0 else f"ended with code {code}"
        yield {"kind": "lost", "error": f"the process {death}", "log": f"see {self.log}"}

    def stop(self) -> None:
        with suppress(BrokenPipeError):
            self.stdin.close()

    def close(self) -> None:
        self.stop()
        self.process.kill()
        self.process.wait()
        self.stdout.close()
        with suppress(OSError):
            if self.log.stat().st_size == 0:
                self.log.unlink()


class LocalWorkers(Engine):
    """The requested number of worker processes."""

    program = START

    def __init__(self, workers: int, device: str = "cpu", threads: int = 1) -> None:
        super().__init__(workers)
        self.device, self._threads, self._hired, self._logs = device, threads, 0, Path()

    def open(self, logs: Path) -> None:
        self._logs = logs
        logs.mkdir(parents=True, exist_ok=True)

    def hire(self, needs: Needs, avoid: str | None) -> Worker:  # noqa: ARG002 - there is one node
        self._hired += 1
        return LocalWorker(f"worker-{self._hired}", needs, self._logs, self._threads, self.program)

    def close(self) -> None:
        with suppress(OSError):
            self._logs.rmdir()  # only if it is empty
