"""The engine's plain stack beside the reference loop of the tests, in turns, on a CPU: what one engine for all costs.

    python benches/plain_engine.py [--json FILE]

Both train the same run on the same samples; times are CPU time of this process, the median of the steps of each turn,
and the ratio is the median over turns. The reference uses the same methods, nets and operations as the engine, so this
shows the cost of the loop alone; `against_commit.py` compares with the code before the single engine.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from kcl.benchmarks.task import Examples, Task
from kcl.core.devices import describe_machine
from kcl.methods.recipes import METHODS, published_backbone, published_settings
from kcl.training.stack import RunStack
from reference_run import ReferenceRun

TURNS = 12
CASES = {
    "kcl on MNIST": ("permuted-mnist", "kcl", (1, 28, 28), 10, 100, {}),
    "kcl, averaged weights, learned targets": (
        *("permuted-mnist", "kcl", (1, 28, 28), 10, 100),
        {"weight_average": 0.99, "soft_targets": 1.0},
    ),
    "naive SGD on MNIST": ("permuted-mnist", "naive-sgd", (1, 28, 28), 10, 400, {}),
    "EWC on MNIST": ("permuted-mnist", "ewc", (1, 28, 28), 10, 200, {}),
    "kcl on CIFAR-100": ("split-cifar100", "kcl", (3, 32, 32), 5, 10, {}),
}


def measure(benchmark: str, name: str, shape: tuple[int, ...], ways: int, steps: int, changes: Any) -> dict[str, Any]:
    settings = published_settings(benchmark, name).replace(**changes)
    count = steps * settings.batch_size + (ways * settings.coreset_size_per_class if name == "kcl" else 0)
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randint(0, 256, (count, *shape), generator=generator, dtype=torch.uint8)
    train = Examples(inputs, torch.arange(count), torch.arange(count) % ways)
    make = partial(published_backbone, shape, settings)
    reference = ReferenceRun(METHODS[name](settings, ways), make, 0)
    stack = RunStack([METHODS[name](settings, ways)], [make], [0], plain=True)
    learners = {"reference": reference.learn, "engine": lambda task, on_step: stack.learn([task], on_step)}
    times: dict[str, list[float]] = {which: [] for which in learners}
    for turn in range(TURNS + 1):
        for which in list(learners)[:: 1 if turn % 2 else -1]:
            ticks: list[float] = []
            task = Task(turn, train, train, tuple(range(ways)))
            learners[which](task, lambda _, ticks=ticks: ticks.append(time.process_time()))
            times[which].append(1e3 * statistics.median(later - sooner for sooner, later in itertools.pairwise(ticks)))
    ratios = [ours / theirs for ours, theirs in zip(times["engine"][1:], times["reference"][1:], strict=True)]
    medians = {f"{which}_ms": round(statistics.median(each[1:]), 4) for which, each in times.items()}
    return medians | {"ratio": round(statistics.median(ratios), 4)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    rows = {}
    for name, case in CASES.items():
        rows[name] = measure(*case)
        print(f"{name:40} {rows[name]}", flush=True)
    if options.json is not None:
        about = describe_machine("cpu") | {"command": "python benches/plain_engine.py"}
        options.json.write_text(json.dumps(about | {"rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
