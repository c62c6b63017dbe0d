"""`kcl tune`: search settings on the first tasks, then train with the best on the whole stream."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from kcl.cli import report_commands, requested_runs
from kcl.cli.commands import FAILED
from kcl.cli.execution import Execution
from kcl.cli.options import check_range
from kcl.core.files import RESULTS
from kcl.core.locking import locked
from kcl.core.randomness import LARGEST_SEED
from kcl.errors import KclError
from kcl.experiments.progress import make_display
from kcl.experiments.run_spec import RunSpec
from kcl.report import figures, page, results_table
from kcl.tuning import space
from kcl.tuning.protocol import JUDGED_BY, Protocol
from kcl.tuning.search import JOURNAL, LOCK, Search, draw, show_settings

CONTENTS = {"a search": JOURNAL, "results": RESULTS}


def parse(options: argparse.Namespace) -> tuple[Search, list[int]]:
    """The search, and the seeds for the whole stream."""
    options.out = options.out or Path("runs") / f"tune-{options.benchmark}-{options.method}"
    runs = requested_runs.specs(options)
    if len({run.settings for run in runs}) != 1:
        raise KclError("--set with commas is a grid; to search among values, pass them to --search")
    dimensions = space.parse(options.search, options.method)
    check_range(options, "trials", 1, 100_000)
    check_range(options, "trials_at_once", 1, 10_000)
    check_range(options, "search_seed", 0, LARGEST_SEED)
    if options.first != "all" and not (options.first.isascii() and options.first.isdecimal()):
        raise KclError(f"--first must be a number of tasks, or all, not {options.first[:20]!r}")
    existing = [what for what, name in CONTENTS.items() if (options.out / name).exists()]
    if existing and not options.resume:
        raise KclError(
            f"{options.out} holds {existing[0]} already; add --resume to continue it, or choose another --out"
        )
    tasks = None if options.first == "all" else int(options.first)
    protocol = Protocol(tasks, options.held_out, tuple(run.seed for run in runs), chosen_by=JUDGED_BY[options.judge_by])
    protocol.specs(runs[0], {})
    final = [run.seed for run in runs]
    if options.final_seeds == "none":
        final = []
    elif options.final_seeds is not None:
        final = requested_runs.whole_numbers(options.final_seeds, "--final-seeds")
    trials, at_once = int(min(options.trials, space.size(dimensions))), options.trials_at_once
    single = options.one_at_a_time
    if single:  # a mistake is told before anything is written
        trials = len(space.around(dimensions, runs[0].settings))
    return Search(runs[0], dimensions, protocol, trials, at_once, options.search_seed, options.out, single), final


def tune_settings(options: argparse.Namespace) -> int:
    """A signal leaves a search that --resume continues; runs that are given up end it."""
    search, seeds = parse(options)
    out, display = search.out, make_display(options.quiet)
    if options.force:
        raise KclError("kcl tune has no --force: resume the search unchanged, or start one in another --out")

    def train(specs: Sequence[RunSpec], folder: Path, notes: Mapping[str, Any]) -> list[dict[str, Any]]:
        records = execution.run(specs, folder, True, notes)
        if getattr(options, "failed", False):
            raise SystemExit(FAILED)
        return records

    with Execution(options, display) as execution, locked(out, LOCK):
        best = search.run(train, display.say)
        records = search.final(best, seeds, train)
    summary, trials = search.write(records), search.study.finished
    files = [str(summary)]
    if figures.available():
        files.append(str(figures.save(draw(search.space, trials), out / "search")[-1]))
    else:
        print("kcl: the search was not drawn: that needs matplotlib; with it, --resume draws it", file=sys.stderr)
    if records:
        page.write_page(records, out / "report.html", report_commands.default_title(records))
    if not options.quiet:
        chosen = show_settings(best.settings)
        print(f"best of {len(trials)} trials: {chosen}, {best.value:.2f} % on held-out samples")
        if records:
            print(results_table.text(records))
            print(f"results: {out / RESULTS}\npage:    {out / 'report.html'}")
        print(f"search:  {', '.join(files)}")
    return 0
