"""What `kcl reproduce` was asked for: which tables and figures, at which scale, over which seeds."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from kcl.benchmarks.catalogue import find_benchmark
from kcl.paper.catalogue import ITEMS, find_items
from kcl.paper.cell import FULL, QUICK, Scale
from kcl.paper.item import Item
from kcl.paper.reproduce import estimate, needed, write
from kcl.run_options import whole_numbers
from kcl.run_spec import RunSpec


def add_options(command: argparse.ArgumentParser) -> None:
    command.add_argument("items", nargs="*", metavar="ITEM", help="all, or some of: " + ", ".join(ITEMS))
    command.add_argument("--list", action="store_true", help="name the tables and figures, and do nothing")
    command.add_argument("--seeds", help="seeds as 0,1,2 or 0..4 (default: 0..4; 0,1 with --quick)")
    command.add_argument("--quick", action="store_true",
                         help="a miniature on scikit-learn's digits, in minutes on a CPU: it shows that all works, not "
                         "what the paper claims")  # fmt: skip
    command.add_argument("--without", action="append", default=[], metavar="BENCHMARK",
                         help="leave out the runs of a benchmark, for want of its data")  # fmt: skip
    command.add_argument("--out", type=Path, help="output folder (default: runs/paper, runs/paper-quick)")
    command.add_argument("--resume", action="store_true", help="keep the folder's finished runs and do the rest")
    command.add_argument("--dry-run", action="store_true", help="say what would be run, and do nothing")
    command.add_argument("--report-only", action="store_true", help="run nothing; draw what is finished")
    command.add_argument("--results", type=Path, metavar="FILE",
                         help="with --report-only: the finished runs (default: OUT/results.jsonl)")  # fmt: skip


def listed() -> dict[str, str]:
    return {name: f"{item.title} ({item.place})" for name, item in ITEMS.items()}


class Asked(NamedTuple):
    items: list[Item]
    scale: Scale
    seeds: list[int]
    specs: list[RunSpec]
    out: Path
    results: Path

    def told(self) -> dict[str, str]:
        """What would be run."""
        guess = estimate(self.specs)
        lines = {
            "items": ", ".join(item.name for item in self.items),
            "seeds": ", ".join(map(str, self.seeds)),
            "runs": f"{guess.runs}, in {guess.groups} groups that are trained together on a GPU",
            "benchmarks": ", ".join(dict.fromkeys(spec.benchmark for spec in self.specs)) or "none",
        }
        if guess.minutes is not None and self.specs:
            lines["time"] = (
                f"about {guess.minutes:.0f} minutes on one NVIDIA H200 (benches/results, and a guess at set-up)"
            )
            lines["memory"] = f"about {guess.gigabytes:.1f} GB of GPU memory"
        if self.scale.note:
            lines["note"] = self.scale.note
        return lines

    def write(self, records: Sequence[Mapping[str, Any]]) -> Path:
        return write(self.items, records, self.scale, self.seeds, self.out)


def asked(options: argparse.Namespace) -> Asked:
    """Every mistake in the options refused."""
    items, scale = find_items(options.items), QUICK if options.quick else FULL
    seeds = whole_numbers(options.seeds or ("0,1" if options.quick else "0..4"), "--seeds")
    for name in options.without:
        find_benchmark(name)
    specs = [spec for spec in needed(items, scale, seeds) if spec.benchmark not in options.without]
    out = options.out or Path("runs") / ("paper-quick" if options.quick else "paper")
    return Asked(items, scale, seeds, specs, out, options.results or out / "results.jsonl")
