"""A worker process of this machine: orders come in on standard input, one a line, and what becomes of them goes out.

The end of its input asks it to save and end, so that it does not outlive whoever started it, however that ended.
"""

from __future__ import annotations

import json
import os
import queue
import signal
import sys
import threading

from kcl.engines.job import Message, Order
from kcl.engines.worker import do
from kcl.training.stopping import Stop


def main() -> None:
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what any package prints belongs into the log
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the one who gives orders
    stop, waiting = Stop(), queue.SimpleQueue[str | None]()

    def listen() -> None:
        for line in sys.stdin:
            waiting.put(line)
        stop.asked = signal.SIGTERM
        waiting.put(None)

    def tell(message: Message) -> None:
        try:
            out.write(json.dumps(message) + "\n")
            out.flush()
        except BrokenPipeError:
            stop.asked = signal.SIGTERM

    threading.Thread(target=listen, daemon=True).start()
    while (line := waiting.get()) is not None and stop.asked is None:
        do(Order.from_json(line), tell, stop)
    os._exit(0)  # the thread that listens may hold standard input
