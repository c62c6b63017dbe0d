"""Comparison to the state of the art: seven methods on four benchmarks, and what each keeps and when it uses it."""

from __future__ import annotations

from typing import Any

from kcl.paper import paper_tables
from kcl.paper.cell import CIFAR100, MINIIMAGENET, PERMUTED, ROTATED, TITLES, Cell, Published
from kcl.paper.item import Found, Item

KCL = "kernel continual learning (VRF)"
ROWS = {
    "naive SGD (lower bound)": "naive-sgd",
    "EWC": "ewc",
    "A-GEM": "a-gem",
    "ER-Reservoir": "er-reservoir",
    "Stable SGD": "stable-sgd",
    KCL: "kcl",
    "multi-task (upper bound)": "multi-task",
}
MEMORY = {
    "a-gem": "while training",
    "er-reservoir": "while training",
    "kcl": "at test",
    "multi-task": "no memory: all at once",
}
"""Which methods keep samples, and when they use them."""

PAPER = {
    PERMUTED: {
        "naive-sgd": Published(44.4, 2.46, 0.53),
        "ewc": Published(70.7, 1.74, 0.23),
        "a-gem": Published(65.7, 0.51, 0.29),
        "er-reservoir": Published(72.4, 0.42, 0.16),
        "stable-sgd": Published(80.1, 0.51, 0.09),
        "kcl": Published(85.5, 0.78, 0.02),
        "multi-task": Published(86.5, 0.21, 0.0),
    },
    ROTATED: {
        "naive-sgd": Published(46.3, 1.37, 0.52),
        "ewc": Published(48.5, 1.24, 0.48),
        "a-gem": Published(55.3, 1.47, 0.42),
        "er-reservoir": Published(69.2, 1.10, 0.21),
        "stable-sgd": Published(70.8, 0.78, 0.10),
        "kcl": Published(81.8, 0.60, 0.01),
        "multi-task": Published(87.3, 0.47, 0.0),
    },
    CIFAR100: {
        "naive-sgd": Published(40.4, 2.83, 0.31),
        "ewc": Published(42.7, 1.89, 0.28),
        "a-gem": Published(50.7, 2.32, 0.19),
        "er-reservoir": Published(46.9, 0.76, 0.21),
        "stable-sgd": Published(59.9, 1.81, 0.08),
        "kcl": Published(62.7, 0.89, 0.06),
        "multi-task": Published(64.8, 0.72, 0.0),
    },
    MINIIMAGENET: {
        "naive-sgd": Published(36.1, 1.31, 0.24),
        "ewc": Published(34.8, 2.34, 0.24),
        "a-gem": Published(42.3, 1.42, 0.17),
        "er-reservoir": Published(49.8, 2.92, 0.12),
        "kcl": Published(53.3, 0.57, 0.04),
        "multi-task": Published(65.1, None, 0.0),
    },
}

NEARER: dict[tuple[str, str], dict[str, Any]] = {
    (PERMUTED, "multi-task"): {"train_per_task": 2500},
    (ROTATED, "multi-task"): {"train_per_task": 2500},
    (CIFAR100, "er-reservoir"): {"changes": {"recalled_per_step": 256}},
    (MINIIMAGENET, "naive-sgd"): {"changes": {"backbone": "cifar-resnet", "lr": 0.03, "momentum": 0.0}},
    (MINIIMAGENET, "ewc"): {"changes": {"backbone": "cifar-resnet"}},
}
"""Cells nearer to what the programs behind the printed numbers do, where they move a number to what is printed, or most
of the way. REPRODUCIBILITY.md says how near: the ResNet18 behind those for miniImageNet keeps the image's size through
its stem and first stage, as `cifar-resnet` does, but is wider; joint training on MNIST sees 50,000 samples of all tasks
together."""


class Comparison(Item):
    name = "comparison"
    place = "Table 5"
    title = "Comparison to the state of the art"
    note = (
        "The paper takes the other methods' numbers from Mirzadeh et al. (2020) and, for miniImageNet, from Chaudhry "
        "et al. (2020); ours are run by this code with the settings in `methods/recipes.py`. Multi-task training is "
        "tested once, at its end, so that it has no forgetting to measure."
    )

    def cells(self) -> list[Cell]:
        return [
            Cell(
                row,
                benchmark,
                method,
                published=published.get(method),
                nearer=_nearer(row, benchmark, method),
            )
            for benchmark, published in PAPER.items()
            for row, method in ROWS.items()
        ]

    def markdown(self, found: Found) -> str:
        kept = {row: [MEMORY.get(method, "none kept")] for row, method in ROWS.items()}
        for cell in self.cells():
            memory = _memory(cell, found)
            kept[cell.row].append(f"{memory['samples']:,} ({memory['bytes']:,})" if memory else "–")
        lines = [("method", "samples kept are used", *(TITLES[benchmark] for benchmark in PAPER))]
        lines += [("---", "---", *["---:"] * len(PAPER)), *((row, *values) for row, values in kept.items())]
        text = "\n".join(f"| {' | '.join(line)} |" for line in lines)
        told = "After the last task: samples, and the bytes of all that is kept beside the network."
        return paper_tables.markdown(self.cells(), found, KCL, "method") + f"\n## Memory\n\n{told}\n\n{text}\n"

    def rows(self, found: Found) -> list[dict[str, Any]]:
        made = paper_tables.rows(self.cells(), found, KCL)
        for cell, row in zip(self.cells(), made, strict=True):
            row["samples kept are used"] = MEMORY.get(cell.method, "none kept")
            memory = _memory(cell, found)
            row |= {"samples kept": memory.get("samples"), "bytes kept": memory.get("bytes")}
        return made


def _memory(cell: Cell, found: Found) -> dict[str, int]:
    """What the runs of a cell kept, of whatever seed; nothing where none is finished."""
    runs = found.runs(cell)
    return dict(runs[0].get("memory") or {}) if runs else {}


def _nearer(row: str, benchmark: str, method: str) -> Cell | None:
    other = NEARER.get((benchmark, method))
    return None if other is None else Cell(row, benchmark, method, **other)
