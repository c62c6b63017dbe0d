"""`kcl reproduce`: the runs behind the paper's tables and figures, then the tables and figures."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

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
from kcl.paper.cell import FULL, QUICK, FinishedRuns
from kcl.paper.inference_time import InferenceTime, file_of
from kcl.paper.page_sections import replace_sections, section_names
from kcl.paper.reproduce import BEYOND, ITEMS, STRONG, WITHOUT_TASK, estimate, find_items, required_runs, write_report
from kcl.report import figures

SEVERAL = 4
"""Workers that hide each other's set-up on one GPU, for comparison."""


class Reproduction:
    """What to run and to report, as the options describe it; `specs` are the runs that are not finished already."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options, self.items = options, find_items(options.items)
        self.scale = QUICK if options.quick else FULL
        self.seeds = whole_numbers(options.seeds or ("0,1" if options.quick else "0..4"), "--seeds")
        for name in options.without:
            find_benchmark(name)
        folders = {"strong": STRONG, "class-incremental": WITHOUT_TASK}
        of_all = (folder for folder, known in folders.items() if all(item.name in known for item in self.items))
        self.out = options.out or Path("runs") / (next(of_all, "paper") + ("-quick" if options.quick else ""))
        if options.into and not options.report_only:
            raise KclError("--into needs --report-only")
        self.results: list[Path] = options.results or ([self.out] if options.report_only else [])
        specs = required_runs(self.items, self.scale, self.seeds)
        self.specs = [spec for spec in specs if spec.benchmark not in options.without]
        if self.results and not options.report_only:
            finished = FinishedRuns(self.finished(), self.scale, self.seeds)
            self.specs = [spec for spec in self.specs if finished.find(spec) is None]

    def plan(self) -> dict[str, str]:
        """What would be run."""
        workers = self.options.workers or 1
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

    def measure(self) -> None:
        """Measure what runs do not record."""
        times = next((item for item in self.items if isinstance(item, InferenceTime)), None)
        if times is None:
            return
        options, say = self.options, make_display(self.options.quiet).say
        device = use_device(options)
        path = file_of(self.out, device)
        with locked(self.out):
            if not path.exists():
                times.measure(path, device, options.precision, self.scale, options.command_line, say)
            elif options.resume:
                say(f"{path} is kept as it is")
            else:
                raise KclError(f"{path} exists already; add --resume to keep it, or choose another --out")

    def write(self, records: Sequence[Mapping[str, Any]]) -> Path:
        """The report; with --into also the tables of a page."""
        folders = [path if path.is_dir() else path.parent for path in self.results]
        folders += [] if self.options.report_only else [self.out]
        runs = FinishedRuns(records, self.scale, self.seeds, folders)
        if self.options.into is not None:
            page = replace_sections(_read_page(self.options.into), {item.name: item for item in self.items}, runs)
            write_whole(self.options.into, page.encode())
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


def reproduce(options: argparse.Namespace) -> int:
    if options.list:
        lines = {name: f"{item.title} ({item.place})" for name, item in ITEMS.items()}
        lines |= {"all": "all of these", "strong": f"beyond the paper, not part of `all`: {', '.join(STRONG)}"}
        return print_lines(lines | {name: item.title for name, item in BEYOND.items()})
    request, records = Reproduction(options), list[dict[str, Any]]()
    if options.dry_run:
        return print_lines(request.plan())
    if not options.report_only:
        if request.specs:
            records = execute_runs(request.specs, options, request.out, options.resume, show=False)
        request.measure()
    index = request.write(records + request.finished())
    if not figures.available():
        print("kcl: no figures were drawn: they need matplotlib; with it, --report-only draws them", file=sys.stderr)
    if not options.quiet:
        print(f"tables and figures: {index}")
    return 0
