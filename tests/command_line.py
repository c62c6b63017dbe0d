"""Calling the command line in this process."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import pytest

from kcl.cli import commands


class Said(NamedTuple):
    code: int
    out: str
    err: str


def call(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> Said:
    capsys.readouterr()
    try:
        code = commands.main([str(argument) for argument in arguments])
    except SystemExit as exit:
        code = int(exit.code or 0)
    return Said(code, *capsys.readouterr())
