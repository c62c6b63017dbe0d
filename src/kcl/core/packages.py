"""Packages that only some commands need, as extras of this one."""

from __future__ import annotations

import importlib
from typing import Any

from kcl.errors import KclError


def load_package(module: str, extra: str, needed: str) -> Any:
    """A module of such a package. `needed`: the start of the message where it is missing, as in "--log needs wandb"."""
    try:
        return importlib.import_module(module)
    except ImportError:
        raise KclError(f'{needed}; install with: pip install "kernel-continual-learning[{extra}]"') from None
