"""SIGKILL at random moments: runs that are killed and gone on with, again and again, must end as if never touched.

Each attempt is a process of its own, forked from one that has everything imported already.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import random
import signal
import time
from pathlib import Path
from typing import NamedTuple

import torch

from kcl.cli import commands

METHODS = ("kcl", "er-reservoir", "ewc")
LASTING = ("seed", "accuracy_matrix", "initial_accuracy", "diverged", "memory", "fingerprint")


class Kills(NamedTuple):
    kills: int
    finished: int
    """Commands that came to their end, each after some kills."""
    resumed: int
    """How often a run went on from a checkpoint and came as far as the next, over all of them."""


def torture(folder: Path, kills: int, seed: int = 0, methods: tuple[str, ...] = METHODS) -> dict[str, Kills]:
    """Kill `kills` times in all, shared out between the methods; AssertionError if any result differs in any bit."""
    randomness, seen = random.Random(seed), {}
    torch.set_num_threads(1)  # more would not outlive a fork
    for place, method in enumerate(methods):
        share = kills // len(methods) + (place < kills % len(methods))
        seen[method] = _torture_one(folder / method, method, share, randomness)
    return seen


def _torture_one(folder: Path, method: str, kills: int, randomness: random.Random) -> Kills:
    folder.mkdir(parents=True)
    command = ["run", "permuted-digits", "--method", method, "--tasks", "3", "--train-per-task", "400",
               "--seeds", "0,1", "--device", "cpu", "--threads", "1",
               "--set", "width=32", "epochs=2", *(["bases=64"] if method == "kcl" else [])]  # fmt: skip
    with contextlib.redirect_stdout(io.StringIO()):
        commands.main([*command, "--quiet", "--out", str(folder / "here")])  # imports what is imported late
    begun = time.monotonic()
    assert _attempt([*command, "--out", str(folder / "whole")], folder / "log") == 0, (folder / "log").read_text()
    takes = time.monotonic() - begun
    expected = _lasting(folder / "whole")
    assert expected == _lasting(folder / "here")
    done, finished, resumed = 0, 0, 0
    while done < kills:
        out = folder / str(finished)
        while True:
            delay = randomness.uniform(0.0, 0.5 * takes) if done < kills else None
            every = str(randomness.choice([1, 7, 40]))
            arguments = [*command, "--checkpoint-every", every, "--out", str(out), "--resume"]
            code = _attempt(arguments, folder / "log", delay)
            if code != -signal.SIGKILL:
                break
            done += 1
        assert code == 0, (folder / "log").read_text()
        assert _lasting(out) == expected, f"{out} differs from the run that was never touched"
        left = sorted(path.name for path in out.iterdir())
        assert left == ["metrics.csv", "report.html", "results.jsonl", "settings.json"], left
        resumed += sum(record["resumed"] for record in _records(out))
        finished += 1
    return Kills(done, finished, resumed)


def _records(out: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in (out / "results.jsonl").read_text().splitlines()]


def _lasting(out: Path) -> list[dict[str, object]]:
    return [{name: record[name] for name in LASTING} for record in _records(out)]


def _attempt(arguments: list[str], log: Path, kill_after: float | None = None) -> int:
    """The command in a process of its own; its exit code, negative if a signal ended it."""
    child = os.fork()
    if child == 0:
        code = 70
        with contextlib.suppress(BaseException), log.open("w") as file:
            os.dup2(file.fileno(), 1)
            os.dup2(file.fileno(), 2)
            code = commands.main(arguments)
        os._exit(code)
    if kill_after is not None:
        time.sleep(kill_after)
        os.kill(child, signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
