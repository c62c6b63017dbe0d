"""`kcl reproduce`: the runs behind the paper's tables and figures, then the tables and figures."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from kcl.benchmarks.registry import find_benchmark
from kcl.cli.commands import print_lines
from kcl.cli.execution import execute_runs
from kcl.cli.options import use_device
from kcl.cli.requested_runs import whole_numbers
from kcl.core import results
from kcl.core.files import write_whole
from kcl.core.locking import locked
from kcl.core.settings import nearest
from kcl.errors import KclError
from kcl.experiments.progress import make_display
from kcl.experiments.run_spec import RunSpec
from kcl.paper.cell import FULL, QUICK, FinishedRuns, Scale
from kcl.paper.inference_time import InferenceTime, file_of
from kcl.paper.item import Item
from kcl.paper.page_sections import replace_sections, section_names
from kcl.paper.reproduce import BEYOND, ITEMS, STRONG, WITHOUT_TASK, estimate, find_items, required_runs, write_report
from kcl.report import figures

SEVERAL = 4
"""Workers that hide each other's set-up on one GPU, for comparison."""


def listed() -> dict[str, str]:
    lines = {name: f"{item.title} ({item.place})" for name, item in ITEMS.items()}
    lines |= {"all": "all of these", "strong": f"beyond the paper, not part of `all`: {', '.join(STRONG)}"}
    return lines | {name: item.title for name, item in BEYOND.items()}


class Reproduction(NamedTuple):
    """What to run and to report."""

    items: list[Item]
    scale: Scale
    seeds: list[int]
    specs: list[RunSpec]
    out: Path
    results: list[Path]
    into: Path | None
    report_only: bool

    def plan(self, workers: int) -> dict[str, str]:
        """What would be run, by so many workers at the same time."""
        total = estimate(self.specs, workers)
        lines = {
            "items": ", ".join(item.name for item in self.items),
            "seeds": ", ".join(map(str, self.seeds)),
            "runs": f"{total.runs}, in {total.groups} groups that are trained together on a GPU",
            "benchmarks": ", ".join(dict.fromkeys(spec.benchmark for spec in self.specs)) or "none",
        }
        if total.minutes is not None and self.specs:
            several = estimate(self.specs, SEVERAL).minutes if workers == 1 else None
            comparison = f" ({several:.0f} with --workers {SEVERAL})" if several is not None else ""
            where = "on one NVIDIA H200, by the speeds in benches/results"
            lines["time"] = f"about {total.minutes:.0f} minutes{comparison} {where}"
            lines |= {f"  {name}": f"{minutes:.0f} minutes" for name, minutes in self._shares(workers).items()}
            lines["memory"] = f"about {total.gigabytes:.1f} GB of GPU memory"
        searches = [] if self.scale.note else [command for item in self.items for command in item.searches()]
        lines |= {f"search {number}": command for number, command in enumerate(searches, 1)}
        if self.scale.note:
            lines["note"] = self.scale.note
        return lines

    def _shares(self, workers: int) -> dict[str, float]:
        """Minutes that each of several items adds to those before it."""
        if len(self.items) == 1:
            return {}
        keys, shares, before = {spec.key for spec in self.specs}, {}, 0.0
        for count, item in enumerate(self.items, 1):
            specs = required_runs(self.items[:count], self.scale, self.seeds)
            minutes = estimate([spec for spec in specs if spec.key in keys], workers).minutes or 0.0
            shares[item.name], before = minutes - before, minutes
        return shares

    def finished(self) -> list[dict[str, Any]]:
        """The runs in the results that were named."""
        files = [file for path in self.results for file in (sorted(path.glob("*.jsonl")) if path.is_dir() else [path])]
        if self.specs and self.results and not files:
            raise KclError(f"there are no results (*.jsonl) in {', '.join(map(str, self.results))}")
        return [record for file in files for record in results.read(file)]

    def write(self, records: Sequence[Mapping[str, Any]]) -> Path:
        folders = [path if path.is_dir() else path.parent for path in self.results]
        folders += [] if self.report_only else [self.out]
        runs = FinishedRuns(records, self.scale, self.seeds, folders)
        if self.into is not None:
            page = replace_sections(_read_page(self.into), {item.name: item for item in self.items}, runs)
            write_whole(self.into, page.encode())
        return write_report(self.items, runs, self.out)


def _read_page(path: Path) -> str:
    try:
        page = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise KclError(f"cannot read {path}: {error}") from None
    for name in section_names(page):
        if name not in ITEMS | BEYOND:
            raise KclError(f"{path} has a marker for {name!r}; {nearest(name, [*ITEMS, *BEYOND])}")
    return page


def parse(options: argparse.Namespace) -> Reproduction:
    """The reproduction that the options describe, without runs that are finished already."""
    items, scale = find_items(options.items), QUICK if options.quick else FULL
    seeds = whole_numbers(options.seeds or ("0,1" if options.quick else "0..4"), "--seeds")
    for name in options.without:
        find_benchmark(name)
    specs = [spec for spec in required_runs(items, scale, seeds) if spec.benchmark not in options.without]
    folders = {"strong": STRONG, "class-incremental": WITHOUT_TASK}
    of_all = (folder for folder, known in folders.items() if all(item.name in known for item in items))
    folder = next(of_all, "paper")
    out = options.out or Path("runs") / (folder + ("-quick" if options.quick else ""))
    if options.into and not options.report_only:
        raise KclError("--into needs --report-only")
    paths = options.results or ([out] if options.report_only else [])
    reproduction = Reproduction(items, scale, seeds, specs, out, paths, options.into, options.report_only)
    if options.report_only or not paths:
        return reproduction
    finished = FinishedRuns(reproduction.finished(), scale, seeds)
    return reproduction._replace(specs=[spec for spec in specs if finished.find(spec) is None])


def reproduce(options: argparse.Namespace) -> int:
    if options.list:
        return print_lines(listed())
    request = parse(options)
    if options.dry_run:
        return print_lines(request.plan(options.workers or 1))
    if options.report_only:
        records = request.finished()
    else:
        records = execute_runs(request.specs, options, request.out, options.resume, show=False) if request.specs else []
        records += request.finished()
        _measure(request, options)
    index = request.write(records)
    if not figures.available():
        print("kcl: no figures were drawn: they need matplotlib; with it, --report-only draws them", file=sys.stderr)
    if not options.quiet:
        print(f"tables and figures: {index}")
    return 0


def _measure(request: Reproduction, options: argparse.Namespace) -> None:
    """Measure what runs do not record."""
    times = next((item for item in request.items if isinstance(item, InferenceTime)), None)
    if times is None:
        return
    device, say = use_device(options), make_display(options.quiet).say
    path = file_of(request.out, device)
    with locked(request.out):
        if not path.exists():
            times.measure(path, device, options.precision, request.scale, options.command_line, say)
        elif options.resume:
            say(f"{path} is kept as it is")
        else:
            raise KclError(f"{path} exists already; add --resume to keep it, or choose another --out")
