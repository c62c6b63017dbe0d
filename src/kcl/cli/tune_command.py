"""`kcl tune`: search settings on the first tasks, then train with the best on the whole stream."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from kcl.cli import tune_options
from kcl.cli.commands import FAILED
from kcl.cli.run_commands import add_execution_options, exit_stopped, print_failures
from kcl.errors import KclError

if TYPE_CHECKING:
    from kcl.cli.execution import Done


def add(command: argparse.ArgumentParser) -> None:
    tune_options.add_options(command)
    add_execution_options(command)
    command.set_defaults(function=_tune)


def _tune(options: argparse.Namespace) -> int:
    """A signal leaves a search that --resume continues; runs that are given up end it."""
    from kcl.cli import report_commands
    from kcl.cli.execution import Execution, Stopped
    from kcl.core.locking import locked
    from kcl.experiments.progress import make_display
    from kcl.report import figures, page, results_table
    from kcl.tuning import search_plots, tune

    search, seeds = tune_options.parse(options)
    out, display = search.out, make_display(options.quiet)
    if options.force:
        raise KclError("--force does not go with kcl tune: resume the search unchanged, or start one in another --out")

    def complete(done: Done) -> Done:
        if done.failures:
            print_failures(done, options)
            raise SystemExit(FAILED)
        return done

    try:
        with Execution(options, display) as execution, locked(out, tune.LOCK):
            best = search.run(lambda *runs: complete(execution.run(*runs)), display.say)
            records = search.final(best, seeds, lambda *runs: complete(execution.run(*runs)))
    except Stopped as signal:
        exit_stopped(signal, options, out, options.resume)
    summary, trials = search.write(records), search.study().finished
    files = [str(summary)]
    if figures.available():
        files.append(str(figures.save(search_plots.draw(search.space, trials), out / "search")[-1]))
    else:
        print("kcl: the search was not drawn: that needs matplotlib; with it, --resume draws it", file=sys.stderr)
    if records:
        page.write_page(records, out / "report.html", report_commands.default_title(records))
    if not options.quiet:
        print(f"best of {len(trials)} trials: {tune.show(best.settings)}, {best.value:.2f} % on held-out samples")
        if records:
            print(results_table.text(records))
            print(f"results: {out / report_commands.RESULTS}\npage:    {out / 'report.html'}")
        print(f"search:  {', '.join(files)}")
    return 0
