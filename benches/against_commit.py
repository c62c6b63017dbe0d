"""CPU time per step of this tree beside that of the code before the single engine, in turns, each in its own process.

    git worktree add /tmp/before 13db735
    python benches/against_commit.py /tmp/before/src [--json FILE]

One thread; the median of the steps of each turn, and the median over turns of the ratio.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import statistics
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

TURNS, WARM = 8, 2
CASES: dict[str, tuple[str, int, dict[str, float]]] = {
    "kcl on MNIST": ("kcl", 150, {}),
    "kcl, averaged weights, learned targets": ("kcl", 100, {"weight_average": 0.99, "soft_targets": 1.0}),
    "naive SGD on MNIST": ("naive-sgd", 300, {}),
    "EWC on MNIST": ("ewc", 400, {}),
}
WAYS, SHAPE = 10, (1, 28, 28)


def _learner(name: str, settings: Any) -> Any:
    """What learns a task in the tree that is on the path: the engine, or the run of the code before it."""
    from kcl.methods.recipes import METHODS, published_backbone

    make = partial(published_backbone, SHAPE, settings)
    try:
        from kcl.training.stack import RunStack
    except ImportError:
        from kcl.training.run import Run

        return Run(METHODS[name](settings, WAYS), make, 0).learn
    stack = RunStack([METHODS[name](settings, WAYS)], [make], [0], plain=True)
    return lambda task, on_step: stack.learn([task], on_step)


def work(case: str) -> None:
    """In a process of its own: a line of input asks for a task, its milliseconds per step are the answer."""
    import torch

    from kcl.benchmarks.task import Examples, Task
    from kcl.methods.recipes import published_settings

    torch.set_num_threads(1)
    name, steps, changes = CASES[case]
    settings = published_settings("permuted-mnist", name).replace(**changes)
    count = steps * settings.batch_size + (WAYS * settings.coreset_size_per_class if name == "kcl" else 0)
    inputs = torch.randint(0, 256, (count, *SHAPE), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
    train, learn = Examples(inputs, torch.arange(count), torch.arange(count) % WAYS), _learner(name, settings)
    for index, _ in enumerate(sys.stdin):
        ticks: list[float] = []
        learn(Task(index, train, train, tuple(range(WAYS))), lambda _, ticks=ticks: ticks.append(time.process_time()))
        print(1e3 * statistics.median(later - sooner for sooner, later in itertools.pairwise(ticks)), flush=True)


def measure(case: str, trees: dict[str, Path]) -> dict[str, float]:
    command = [sys.executable, __file__, "--work", case]
    workers = {
        tree: subprocess.Popen(
            command,
            env=os.environ | {"PYTHONPATH": str(path)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for tree, path in trees.items()
    }
    times: dict[str, list[float]] = {tree: [] for tree in trees}
    for turn in range(TURNS + WARM):
        for tree in list(trees)[:: 1 if turn % 2 else -1]:
            asked, answer = workers[tree].stdin, workers[tree].stdout
            assert asked is not None
            assert answer is not None
            asked.write("\n")
            asked.flush()
            times[tree].append(float(answer.readline()))
    for worker in workers.values():
        worker.communicate()
    ratios = [now / before for now, before in zip(times["now"][WARM:], times["before"][WARM:], strict=True)]
    medians = {f"{tree}_ms": round(statistics.median(each[WARM:]), 4) for tree, each in times.items()}
    return medians | {"ratio": round(statistics.median(ratios), 4)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("before", type=Path, nargs="?", help="the src folder of the other tree")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--work", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.work:
        work(options.work)
        return
    trees = {"before": options.before.resolve(), "now": Path(__file__).resolve().parents[1] / "src"}
    rows = {}
    for case in CASES:
        rows[case] = measure(case, trees)
        print(f"{case:40} {rows[case]}", flush=True)
    if options.json is not None:
        about = {"command": "python benches/against_commit.py BEFORE/src, of commit 13db735", "threads": 1}
        options.json.write_text(json.dumps(about | {"rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
