"""Made-up runs with known numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from kcl import results
from kcl.metrics import AccuracyMatrix

Run = dict[str, Any]


@pytest.fixture
def make_run() -> Callable[..., Run]:
    """A checked record whose accuracies fall by `drop` a task, from 90 + seed."""

    def make(
        seed: int = 0, *, method: str = "kcl", tasks: int = 3, drop: float = 1.0, **changes: Any
    ) -> dict[str, Any]:
        matrix = AccuracyMatrix(tasks)
        diverged = changes.get("diverged", False)
        for learned in range(0 if diverged else tasks):
            for task in range(learned + 1):
                matrix.record(learned, task, 90.0 + seed - drop * (learned - task))
        record = {
            "format": 1,
            "benchmark": "permuted-digits",
            "method": method,
            "kernel": "vrf" if method == "kcl" else None,
            "seed": seed,
            "tasks": tasks,
            "settings": {"lr": 0.1, "dropout": 0.5},
            "versions": {"kcl": "0.1.0", "torch": "2.6"},
            "device": "cpu",
            "seconds": 10.0 + seed,
            "accuracy_matrix": matrix.to_lists(),
            "initial_accuracy": None,
            **matrix.summary(),
            "diverged": False,
            "memory": {},
            "command": f"kcl run permuted-digits --method {method}",
        } | changes
        results.check(record)
        return record

    return make
