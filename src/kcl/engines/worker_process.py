"""A worker process on this machine: jobs arrive on standard input, one per line, and messages leave on standard output.

The end of its input asks it to save and end, so it never outlives the command, however that ended.
"""

from __future__ import annotations

import json
import os
import queue
import signal
import sys
import threading

from kcl.engines.job import Job, Message
from kcl.engines.worker import run_job
from kcl.training.stopping import Stop


def main() -> None:
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # whatever packages print goes to the log
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the command
    stop, waiting = Stop(), queue.SimpleQueue[str | None]()

    def listen() -> None:
        for line in sys.stdin:
            waiting.put(line)
        stop.asked = signal.SIGTERM
        waiting.put(None)

    def send(message: Message) -> None:
        try:
            out.write(json.dumps(message) + "\n")
            out.flush()
        except BrokenPipeError:
            stop.asked = signal.SIGTERM

    threading.Thread(target=listen, daemon=True).start()
    while (line := waiting.get()) is not None and stop.asked is None:
        run_job(Job.from_json(line), send, stop)
    os._exit(0)  # the listening thread may block on standard input
