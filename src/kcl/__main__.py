"""The door of the command line: it answers Ctrl-C before anything heavy is loaded. `python -m kcl` is `kcl`."""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

INTERRUPTED = 130


def main() -> int:
    # PyTorch takes a second to load, and an interrupt inside an import leaves it half loaded: go at once.
    before = signal.signal(signal.SIGINT, _go)
    from kcl.cli.commands import main as run

    signal.signal(signal.SIGINT, before)
    return run()


def _go(*_: Any) -> None:
    os.write(2, b"kcl: stopped\n")
    os._exit(INTERRUPTED)


if __name__ == "__main__":
    sys.exit(main())
