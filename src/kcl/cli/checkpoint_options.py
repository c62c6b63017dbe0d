"""The options of `kcl run` for checkpoints and resuming."""

from __future__ import annotations

import argparse
import math
from typing import TYPE_CHECKING

from kcl.errors import KclError

if TYPE_CHECKING:
    from kcl.experiments.resuming import Saving
    from kcl.training.checkpointer import Every
    from kcl.training.stopping import Stop

UNITS = {"s": 1.0, "min": 60.0, "h": 3600.0}


def add_options(command: argparse._ActionsContainer) -> None:
    command.add_argument("--checkpoint-every", metavar="HOW_OFTEN", default="auto",
                         help="save unfinished runs every so many steps (200) or so often (90s, 5min, 1h), and after "
                         "every task; off: never (default: 5min and after tasks, within 1 %% of the time)")  # fmt: skip
    command.add_argument("--force", action="store_true",
                         help="with --resume: continue although code or machine have changed, and ignore "
                         "unfinished runs of other settings")  # fmt: skip


def saving(options: argparse.Namespace, resume: bool, stop: Stop) -> Saving:
    from kcl.experiments.resuming import Saving  # loads PyTorch

    if options.force and not resume:
        raise KclError("--force needs --resume")
    return Saving(parse_every(options.checkpoint_every), stop, options.force, getattr(options, "checkpoints", None))


def parse_every(text: str) -> Every:
    """'200', '5min', 'off' or 'auto'."""
    from kcl.training.checkpointer import Every  # loads PyTorch

    if text == "auto":
        return Every()
    if text in ("off", "0"):
        return Every(seconds=None)
    if text.isascii() and text.isdecimal() and len(text) <= 15:
        return Every(steps=int(text), seconds=None, thrifty=False)
    number, unit = text.rstrip("abcdefghijklmnopqrstuvwxyz"), text.lstrip("0123456789. ")
    try:
        seconds = float(number) * UNITS[unit]
        if not 0.0 < seconds < math.inf:
            raise ValueError
    except (ValueError, KeyError):
        raise KclError(
            f"--checkpoint-every {text[:40]!r}: expected a number of steps such as 200, "
            "a time such as 90s, 5min or 1h, or off"
        ) from None
    return Every(seconds=seconds, thrifty=False)
