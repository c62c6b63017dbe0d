"""`make torture`: 100 kills of runs, as many of searches and of models, full disks, 2,000 changed files of every format
and 3,000 connections. Takes many minutes; prints what it saw.

python tests/torture/torture.py [KILLS [MUTATIONS [WORD]]]: with 0 kills only files are changed, with a WORD only those
whose kind has it in its name.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "src"))

import connections
import full_disk
import kills
import mutations
import torch


def main(kill_count: int = 100, mutation_count: int = 2000, word: str = "") -> None:
    torch.set_num_threads(1)
    if kill_count:
        _kill(kill_count)
    if not word:
        _connect(3000)
    begun = time.monotonic()
    for name, form in mutations.formats().items():
        if word not in name:
            continue
        seen = mutations.torture(form, mutation_count)
        print(f"{name}: {seen.mutations} changed files, {seen.refused} refused in one sentence, the others read; "
              f"slowest {seen.slowest_seconds:.2f} s, within 1 GiB, nothing run",
              flush=True)  # fmt: skip
    print(f"mutations: {time.monotonic() - begun:.0f} s")


def _kill(count: int) -> None:
    begun = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        for method, seen in kills.torture(Path(folder), count).items():
            print(f"{method}: {seen.kills} SIGKILLs over {seen.finished} commands of two runs, at least {seen.resumed} "
                  "times gone on from a checkpoint; every accuracy and fingerprint equal", flush=True)  # fmt: skip
    for what, torture in (("kcl tune", kills.torture_search), ("kcl update", kills.torture_model)):
        with tempfile.TemporaryDirectory() as folder:
            seen = torture(Path(folder) / "out", count)
        print(f"{what}: {seen.kills} SIGKILLs over {seen.finished} finished, {seen.resumed} times gone on; "
              "every trial and every answer equal", flush=True)  # fmt: skip
    print(f"kills: {time.monotonic() - begun:.0f} s")
    with tempfile.TemporaryDirectory() as folder:
        filled = full_disk.torture(Path(folder))
    print("full disks: none, nothing may be mounted here" if filled is None else
          f"full disks: {filled.disks} sizes; {filled.stopped} commands stopped in one sentence and went on when there "
          f"was room, {filled.warned} went without some checkpoints; every result equal")  # fmt: skip


def _connect(count: int) -> None:
    begun = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        seen = connections.torture(Path(folder), count, mutations.formats()["results.jsonl"].whole.splitlines(True)[0])
    print(f"live page: {seen.connections} connections with nonsense, up to 300 held open; {seen.requests} requests in "
          f"between all answered, {seen.told} of them with what could not be read, the slowest in "
          f"{seen.slowest_seconds:.2f} s; {time.monotonic() - begun:.0f} s", flush=True)  # fmt: skip


if __name__ == "__main__":
    main(*map(int, sys.argv[1:3]), *sys.argv[3:4])
