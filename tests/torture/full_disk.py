"""A disk that is really full: the output folder on file systems of every size from too small to large enough.

Needs the right to mount one; `tests/test_interrupted.py` simulates a full disk at every write where it is missing.
"""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import NamedTuple

from kills import _attempt, _lasting

from kcl.cli import commands
from kcl.core import results

STEP, SIZES = 4096, 40


class Filled(NamedTuple):
    disks: int
    stopped: int
    """Commands that had to give up, in one sentence, and went on once there was room."""
    warned: int
    """Commands that could not save some checkpoint and came to their end all the same."""


def torture(folder: Path) -> Filled | None:
    """None where nothing may be mounted; AssertionError if anything is lost or any result differs in any bit."""
    command = ["run", "permuted-digits", "--method", "naive-sgd", "--tasks", "2", "--train-per-task", "200",
               "--seeds", "0,1", "--device", "cpu", "--threads", "1", "--set", "width=32"]  # fmt: skip
    log, disk = folder / "log", folder / "disk"
    disk.mkdir()
    commands.main([*command, "--quiet", "--out", str(folder / "whole")])
    expected, stopped, warned = _lasting(folder / "whole"), 0, 0
    for size in range(1, SIZES + 1):
        if not _run("mount", "-t", "tmpfs", "-o", f"size={size * STEP}", "tmpfs", disk):
            return None
        try:
            out = disk / "out"
            again = [*command, "--checkpoint-every", "3", "--out", str(out), "--resume"]
            code = _attempt(again, log)
            said = log.read_text()
            assert "Traceback" not in said, said
            warned += code == 0 and "no checkpoint could be saved" in said
            if code != 0:
                stopped += 1
                assert code == 2, said
                assert said.splitlines()[-1].startswith("kcl: "), said
                assert "No space left" in said, said
                if (out / "results.jsonl").exists():
                    whole = results.read(out / "results.jsonl", warn=_refuse)
                    assert len(whole) <= 2
                assert _run("mount", "-o", "remount,size=16m", disk)
                assert _attempt(again, log) == 0, log.read_text()
            assert _lasting(out) == expected
        finally:
            _run("umount", disk)
    return Filled(SIZES, stopped, warned)


def _run(*command: str | Path) -> bool:
    try:
        return subprocess.run([str(part) for part in command], capture_output=True, check=False).returncode == 0
    except OSError:
        return False


def _refuse(message: str) -> None:
    raise AssertionError(message)
