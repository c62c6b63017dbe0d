"""Worker processes on this machine. They are started when they are needed, and take one order after another."""

from __future__ import annotations

import json
import os
import selectors
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import kcl
from kcl.engines.engine import Engine, Event
from kcl.engines.job import ENDS, Message, Needs, Order
from kcl.errors import KclError

START = """import sys
if sys.argv[1] not in sys.path:
    sys.path.insert(0, sys.argv[1])
from kcl.engines.child import main
main()
"""


class Child:
    """One worker process; what it prints lies in a log of its own."""

    def __init__(self, name: str, logs: Path, threads: int, program: str) -> None:
        self.name, self.log = name, logs / f"{name}.log"
        self.order: Order | None = None
        root = str(Path(kcl.__file__).parents[1])
        environment = os.environ | {"OMP_NUM_THREADS": str(threads)}
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(  # noqa: S603 - our own code
                [sys.executable, "-P", "-c", program, root],  # -P: no module of the folder one happens to be in
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env=environment,
                start_new_session=True,  # Ctrl-C in a terminal reaches whoever gives orders, and only that
            )
        assert self.process.stdin is not None  # noqa: S101 - as asked for
        assert self.process.stdout is not None  # noqa: S101
        self.stdin, self.stdout = self.process.stdin, self.process.stdout
        os.set_blocking(self.stdout.fileno(), False)
        self._rest = b""

    def give(self, order: Order) -> None:
        self.order = order
        with suppress(BrokenPipeError):  # it has died; `messages` will say so
            self.stdin.write(order.to_json().encode() + b"\n")
            self.stdin.flush()

    def messages(self) -> tuple[list[Message], bool]:
        """What it has said since, and whether it is still there."""
        found, alive = [], True
        while True:
            try:
                block = os.read(self.stdout.fileno(), 1 << 20)
            except BlockingIOError:
                break
            if not block:
                alive = False
                break
            *lines, self._rest = (self._rest + block).split(b"\n")
            found += [json.loads(line) for line in lines]
        return found, alive

    def ended(self) -> str:
        """How it died."""
        self.process.wait()
        code = self.process.returncode
        return f"the process was killed by signal {-code}" if code < 0 else f"the process ended with code {code}"

    def hang_up(self) -> None:
        with suppress(BrokenPipeError):
            self.stdin.close()

    def close(self) -> None:
        self.hang_up()
        self.process.kill()
        self.process.wait()
        self.stdout.close()
        with suppress(OSError):
            if self.log.stat().st_size == 0:
                self.log.unlink()


class Local(Engine):
    """As many worker processes as asked for."""

    program = START

    def __init__(self, workers: int, logs: Path, threads: int = 1) -> None:
        self.workers, self._logs, self._threads = workers, logs, threads
        self._children: list[Child] = []
        self._started = 0
        self._selector = selectors.DefaultSelector()
        try:
            logs.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise KclError(f"cannot write to {logs}: {error.strerror or error}") from None

    def room(self, needs: Needs) -> bool:  # noqa: ARG002 - how many there are is for the user to say
        return sum(child.order is not None for child in self._children) < self.workers

    def start(self, order: Order, avoid: str | None = None) -> None:
        idle = [child for child in self._children if child.order is None and child.name != avoid]
        if not idle and len(self._children) >= self.workers:
            self._drop(next(child for child in self._children if child.order is None))  # the one to be avoided
        (idle[0] if idle else self._add()).give(order)

    def wait(self, seconds: float) -> list[Event]:
        events: list[Event] = []
        if not self._children:
            time.sleep(seconds)
        for key, _ in self._selector.select(seconds) if self._children else []:
            child: Child = key.data
            messages, alive = child.messages()
            for message in messages:
                if child.order is None:
                    continue
                events.append(Event(child.order.name, child.name, message))
                if message["kind"] in ENDS:
                    child.order = None
            if not alive:
                if child.order is not None:
                    told = {"kind": "lost", "error": child.ended(), "log_file": str(child.log)}
                    events.append(Event(child.order.name, child.name, told))
                self._drop(child)
        return events

    def stop(self) -> None:
        for child in self._children:
            child.hang_up()

    def close(self) -> None:
        for child in list(self._children):
            self._drop(child)
        self._selector.close()
        with suppress(OSError):
            self._logs.rmdir()  # nothing was written

    def _add(self) -> Child:
        self._started += 1
        child = Child(f"worker-{self._started}", self._logs, self._threads, self.program)
        self._children.append(child)
        self._selector.register(child.stdout, selectors.EVENT_READ, child)
        return child

    def _drop(self, child: Child) -> None:
        self._selector.unregister(child.stdout)
        self._children.remove(child)
        child.close()
