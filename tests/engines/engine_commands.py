"""Small runs on scikit-learn's digits, done by the command line as a user calls it."""

from __future__ import annotations

import atexit
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import kcl

SETTINGS = ["--device", "cpu", "--threads", "1", "--set", "bases=16", "width=16", "coreset_size_per_class=3"]
RUNS = ["run", "permuted-digits", "--tasks", "2", "--train-per-task", "300", *SETTINGS]
# Long enough to be met in the midst of it.
LONG = ["run", "permuted-digits", "--tasks", "3", "--train-per-task", "500", "--checkpoint-every", "20", *SETTINGS,
        "epochs=3"]  # fmt: skip
PASSING = ("seconds", "learning_seconds", "resumed", "command")


def environment(**more: str) -> dict[str, str]:
    return os.environ | {"PYTHONPATH": str(Path(kcl.__file__).parents[1]), "OMP_NUM_THREADS": "1"} | more


@cache
def trapped_folder() -> str:
    """Of its modules none may be imported by a process that kcl starts there."""
    folder = tempfile.mkdtemp()
    atexit.register(shutil.rmtree, folder)
    for name in ("kcl", "numpy", "ray", "submitit", "torch"):
        Path(folder, f"{name}.py").write_text("raise SystemExit('imported from the current folder')\n")
    return folder


def start(arguments: Sequence[str], **more: str) -> subprocess.Popen[str]:
    """The command line as a process of its own, in a folder with code that must not be run."""
    return subprocess.Popen(
        [sys.executable, "-P", "-m", "kcl", *map(str, arguments)],
        cwd=trapped_folder(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(**more),
    )


def finish(process: subprocess.Popen[str], seconds: float = 300) -> tuple[int, str]:
    """Its exit code and what it said."""
    try:
        out, err = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        out, err = process.communicate()
        raise AssertionError(f"it did not end: {out}\n{err}") from None
    return process.returncode, out + err


def until(true: Callable[[], Any], process: subprocess.Popen[str], seconds: float = 180) -> None:
    """Wait while the process goes on; whether it has done what was waited for."""
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, "it took too long"
        assert process.poll() is None, f"it ended: {process.communicate()}"
        time.sleep(0.05)


def records(out: Path) -> list[dict[str, Any]]:
    path = out / "results.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def lasting(out: Path) -> list[dict[str, Any]]:
    """What does not depend on when, where and in which order: every number of every run, and all its weights."""
    found = sorted(records(out), key=lambda record: (record["seed"], json.dumps(record["settings"])))
    return [{name: value for name, value in record.items() if name not in PASSING} for record in found]
