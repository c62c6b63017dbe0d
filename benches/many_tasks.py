"""What a model of many tasks costs: answers to one query, saving and loading, as the tasks become more.

python benches/many_tasks.py [TASKS]

Tasks of two classes and 16 columns; medians of single queries in milliseconds, saving and loading in seconds. "named":
`predict` with the name of a task; "logits": the same without names of classes; "joint": without a task.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

import kcl

SHOWN = (1, 10, 100, 1000, 3000)
SETTINGS: dict[str, dict[str, Any]] = {
    "streaming": {"bases": 64},
    "coreset": {"backbone": "identity", "kernel": "rff", "bases": 16, "coreset_size_per_class": 2, "epochs": 1},
}


def measure(head: str, tasks: int) -> None:
    rng = np.random.default_rng(0)
    model, query = kcl.ContinualModel(head=head, **SETTINGS[head]), rng.normal(size=(1, 16)).astype(np.float32)
    for number in range(tasks):
        labels = np.arange(12) % 2
        model.learn(rng.normal(size=(12, 16)).astype(np.float32) + labels[:, None], labels, f"task {number}")
        if number + 1 in SHOWN:
            show(head, number + 1, model, query)


def show(head: str, tasks: int, model: kcl.ContinualModel, query: np.ndarray) -> None:
    with tempfile.TemporaryDirectory() as folder:
        begun = time.perf_counter()
        kcl.save_model(model, Path(folder) / "model")
        saved = time.perf_counter()
        kcl.load_model(Path(folder) / "model")
        loaded = time.perf_counter()
    print(
        f"{head:9} {tasks:5} tasks: named {_median(lambda: model.predict(query, 'task 0')):.3f} ms, "
        f"logits {_median(lambda: model.logits(query, 'task 0')):.3f} ms, "
        f"joint {_median(lambda: model.predict(query)):.3f} ms, "
        f"save {saved - begun:.2f} s, load {loaded - saved:.2f} s",
        flush=True,
    )


def _median(ask: Callable[[], Any]) -> float:
    times = []
    for _ in range(51):
        begun = time.perf_counter()
        ask()
        times.append(1e3 * (time.perf_counter() - begun))
    return statistics.median(times)


if __name__ == "__main__":
    torch.set_num_threads(1)
    measure("coreset", 1)  # once for what is imported late
    for kind in SETTINGS:
        measure(kind, int(sys.argv[1]) if sys.argv[1:] else 1000)
