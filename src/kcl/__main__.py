"""The entry point of the command line, which answers Ctrl-C while PyTorch loads. `python -m kcl` is `kcl`."""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

INTERRUPTED = 130


def main() -> int:
    # PyTorch takes a second to load, and an interrupt inside its import would leave it half loaded: exit at once.
    before = signal.signal(signal.SIGINT, _exit)
    from kcl.cli import commands

    options = commands.parse()
    import torch  # noqa: F401 - so that no handler imports it first

    signal.signal(signal.SIGINT, before)
    return commands.execute(options)


def _exit(*_: Any) -> None:
    os.write(2, b"kcl: stopped\n")
    os._exit(INTERRUPTED)


if __name__ == "__main__":
    sys.exit(main())
