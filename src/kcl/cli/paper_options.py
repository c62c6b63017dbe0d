"""What `kcl reproduce` was asked for: which tables and figures, at which scale, over which seeds."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from kcl.benchmarks.registry import find_benchmark
from kcl.cli.run_options import whole_numbers
from kcl.core import results
from kcl.core.files import write_whole
from kcl.errors import KclError
from kcl.experiments.run_spec import RunSpec
from kcl.paper.cell import FULL, QUICK, Scale
from kcl.paper.contents import ITEMS, STRONG, find_items
from kcl.paper.item import Found, Item, Measuring
from kcl.paper.reproduce import estimate, needed, write
from kcl.paper.reproducibility import renewed


def add_options(command: argparse.ArgumentParser) -> None:
    names = f"all, or some of: {', '.join(ITEMS)}; past the paper: strong, or some of: {', '.join(STRONG)}"
    command.add_argument("items", nargs="*", metavar="ITEM", help=names)
    command.add_argument("--list", action="store_true", help="name the tables and figures, and do nothing")
    command.add_argument("--seeds", help="seeds as 0,1,2 or 0..4 (default: 0..4; 0,1 with --quick)")
    command.add_argument("--quick", action="store_true",
                         help="a miniature on scikit-learn's digits, in minutes on a CPU: it shows that all works, not "
                         "what the paper claims")  # fmt: skip
    command.add_argument("--without", action="append", default=[], metavar="BENCHMARK",
                         help="leave out the runs of a benchmark, for want of its data")  # fmt: skip
    command.add_argument(
        "--out",
        type=Path,
        help="output folder (default: runs/paper or, past the paper, runs/strong; with --quick, …-quick)",
    )
    command.add_argument("--resume", action="store_true", help="keep the folder's finished runs and do the rest")
    command.add_argument("--dry-run", action="store_true", help="say what would be run, and do nothing")
    command.add_argument("--report-only", action="store_true", help="run nothing; draw what is finished")
    command.add_argument("--results", type=Path, action="append", metavar="PATH",
                         help="finished runs, a folder or a file, that are not done again; with --report-only all that "
                         "is drawn (default: OUT); may be given again")  # fmt: skip
    command.add_argument("--into", type=Path, metavar="PAGE",
                         help="with --report-only: also renew the tables in a page (REPRODUCIBILITY.md)")  # fmt: skip


SEVERAL = 4
"""Workers that hide each other's set-up on one GPU, for comparison."""


def listed() -> dict[str, str]:
    told = {name: f"{item.title} ({item.place})" for name, item in ITEMS.items()}
    told |= {"all": "all of these", "strong": "past the paper, which `all` leaves out: the three that follow"}
    return told | {name: item.title for name, item in STRONG.items()}


class Asked(NamedTuple):
    items: list[Item]
    scale: Scale
    seeds: list[int]
    specs: list[RunSpec]
    out: Path
    results: list[Path]
    into: Path | None
    report_only: bool = False

    def told(self, workers: int) -> dict[str, str]:
        """What would be run, by so many workers at the same time."""
        guess = estimate(self.specs, workers)
        lines = {
            "items": ", ".join(item.name for item in self.items),
            "seeds": ", ".join(map(str, self.seeds)),
            "runs": f"{guess.runs}, in {guess.groups} groups that are trained together on a GPU",
            "benchmarks": ", ".join(dict.fromkeys(spec.benchmark for spec in self.specs)) or "none",
        }
        if guess.minutes is not None and self.specs:
            several = estimate(self.specs, SEVERAL).minutes if workers == 1 else None
            beside = f" ({several:.0f} with --workers {SEVERAL})" if several is not None else ""
            where = "on one NVIDIA H200, by the speeds in benches/results"
            lines["time"] = f"about {guess.minutes:.0f} minutes{beside} {where}"
            lines |= {f"  {name}": f"{minutes:.0f} minutes" for name, minutes in self._shares(workers).items()}
            lines["memory"] = f"about {guess.gigabytes:.1f} GB of GPU memory"
        if self.scale.note:
            lines["note"] = self.scale.note
        return lines

    def _shares(self, workers: int) -> dict[str, float]:
        """Minutes that each of several items adds to those before it."""
        if len(self.items) == 1:
            return {}
        asked = {spec.key for spec in self.specs}
        upto = [
            estimate(
                [spec for spec in needed(self.items[:count], self.scale, self.seeds) if spec.key in asked], workers
            )
            for count in range(len(self.items) + 1)
        ]
        minutes = [guess.minutes or 0.0 for guess in upto]
        return {item.name: minutes[place + 1] - minutes[place] for place, item in enumerate(self.items)}

    def finished(self) -> list[dict[str, Any]]:
        """The runs in the results that were named."""
        files = [file for path in self.results for file in (sorted(path.glob("*.jsonl")) if path.is_dir() else [path])]
        if self.specs and self.results and not files:
            raise KclError(f"there are no results (*.jsonl) in {', '.join(map(str, self.results))}")
        return [record for file in files for record in results.read(file)]

    def write(self, records: Sequence[Mapping[str, Any]]) -> Path:
        folders = [path if path.is_dir() else path.parent for path in self.results]
        folders += [] if self.report_only else [self.out]
        if self.into is not None:
            page = renewed(_text(self.into), self.items, Found(records, self.scale, self.seeds, folders))
            write_whole(self.into, page.encode())
        return write(self.items, records, self.scale, self.seeds, self.out, folders)

    def measure(self, device: str, precision: str, resume: bool, command: str, say: Callable[[str], None]) -> None:
        """What no run tells."""
        for item in self.items:
            item.measure(Measuring(self.out, device, precision, self.scale, resume, command, say))


def _text(page: Path) -> str:
    try:
        return page.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise KclError(f"cannot read {page}: {error}") from None


def asked(options: argparse.Namespace) -> Asked:
    """Every mistake in the options refused."""
    items, scale = find_items(options.items), QUICK if options.quick else FULL
    seeds = whole_numbers(options.seeds or ("0,1" if options.quick else "0..4"), "--seeds")
    for name in options.without:
        find_benchmark(name)
    specs = [spec for spec in needed(items, scale, seeds) if spec.benchmark not in options.without]
    past = all(item.name in STRONG for item in items)
    out = options.out or Path("runs") / (("strong" if past else "paper") + ("-quick" if options.quick else ""))
    if options.into and not options.report_only:
        raise KclError("--into goes with --report-only")
    named = options.results or ([out] if options.report_only else [])
    made = Asked(items, scale, seeds, specs, out, named, options.into, options.report_only)
    if options.report_only or not named:
        return made
    known = Found(made.finished(), scale, seeds)
    return made._replace(specs=[spec for spec in specs if known.run(spec) is None])
