"""The commands that train runs: `kcl run` and `kcl demo`, and the options of `kcl reproduce` and `kcl tune`.

Options are here, apart from what needs PyTorch, so that `--help` answers at once.
"""

from __future__ import annotations

import argparse
import sys
from contextlib import nullcontext
from pathlib import Path

from kcl.cli.commands import named, print_lines, say
from kcl.cli.options import SEVERAL, add_execution_options, add_stream_options, option
from kcl.core.files import RESULTS
from kcl.errors import KclError


# fmt: off
def add_run(command: argparse.ArgumentParser) -> None:
    command.usage = "kcl run BENCHMARK [OPTION …]"
    add_stream_options(command)
    output = add_execution_options(
        command, "output folder (default: one in runs/, named by all choices but the seeds)",
        "keep the folder's finished runs and do the rest (implied without --out)")
    option(output, "--save-samples", "save images of tasks, coresets and mistakes for the page (needs Pillow)",
           action="store_true")
    option(output, "--live", "serve the page on this machine while training", action="store_true")
    option(output, "--port", "port of --live (default: a free one)", type=int, default=0)
    command.set_defaults(function=_run)


def add_demo(command: argparse.ArgumentParser) -> None:
    add_execution_options(command, "output folder (default: demo)", default=Path("demo"))
    command.set_defaults(function=_demo)


def add_reproduce(command: argparse.ArgumentParser) -> None:
    option(command, "items ITEM", "all, or some of the paper's tables and figures; beyond the paper: strong or some of "
           "its items, class-incremental; see `kcl reproduce --list`", nargs="*")
    option(command, "--list", "list the tables and figures, and do nothing", action="store_true")
    option(command, "--seeds", "seeds as 0,1,2 or 0..4 (default: 0..4; 0,1 with --quick)")
    option(command, "--quick", "a miniature on scikit-learn's digits, in minutes on a CPU: it shows that everything "
           "works, not what the paper claims", action="store_true")
    option(command, "--without BENCHMARK", "skip the runs of a benchmark, for example if its data are missing",
           action="append", default=[])
    option(command, "--dry-run", "print what would be run, and do nothing", action="store_true")
    option(command, "--report-only", "run nothing; report the finished runs", action="store_true")
    option(command, "--results PATH", "a folder or file with finished runs, which are not run again; with "
           "--report-only the only ones that are reported (default: OUT); may be repeated", type=Path, action="append")
    option(command, "--into PAGE", "with --report-only: also replace the tables between the markers <!-- ITEM: begin "
           "--> and <!-- ITEM: end --> of a page (REPRODUCIBILITY.md)", type=Path)
    add_execution_options(
        command, "output folder (default: runs/paper or, beyond the paper, runs/strong or runs/class-incremental; with "
        "--quick, …-quick)", "keep the folder's finished runs and do the rest")
    command.set_defaults(function=lambda options: named("kcl.cli.reproduce_command:reproduce")(options))


def add_tune(command: argparse.ArgumentParser) -> None:
    add_stream_options(command)
    option(command, "--search NAME=RANGE", "settings to search: lr=0.001..0.5:log, dropout=0..0.5, kernel=vrf,rbf",
           **SEVERAL)
    option(command, "--trials N", "points to try (default: 50; with choices only, at most all of them)", type=int,
           default=50)
    option(command, "--trials-at-once N", "points proposed and run together (default: 8)", type=int, default=8)
    option(command, "--one-at-a-time", "try the present settings, and those that differ from them in one of --search, "
           "which must have choices only; no other combinations", action="store_true")
    option(command, "--first K", "choose by the first K tasks, or all (default: 3)", default="3")
    option(command, "--held-out SHARE", "share of the training samples held out to choose by (default: 0.1)",
           type=float, default=0.1)
    option(command, "--judge-by", "accuracy of all tasks, or of the old ones: all but the last (default: all)",
           choices=("all", "old"), default="all")
    option(command, "--search-seed", "random seed of the search (default: 0)", type=int, default=0)
    option(command, "--final-seeds", "seeds for the winner's whole stream, or none (default: those of --seeds)")
    add_execution_options(
        command, "output folder (default: runs/tune-BENCHMARK-METHOD)", "continue the search in the folder")
    command.set_defaults(function=lambda options: named("kcl.cli.tune_command:tune_settings")(options))
# fmt: on


def _run(options: argparse.Namespace) -> int:
    from kcl.cli import report_commands, requested_runs
    from kcl.cli.execution import execute_runs
    from kcl.report import page

    specs = requested_runs.specs(options)
    if options.show_settings:
        return print_lines(requested_runs.shown(specs))
    out = options.out or requested_runs.default_out(options)
    resume = options.resume or options.out is None  # nothing in the default folder stands in the way of these runs
    page_title = f"{options.method} on {options.benchmark}"
    live = report_commands.live([out], page_title, say, port=options.port) if options.live else nullcontext()
    with live:
        records = execute_runs(specs, options, out, resume)
    try:
        samples = report_commands.samples_beside([out / RESULTS])
        page.write_page(records, out / "report.html", report_commands.default_title(records), samples)
    except KclError as error:  # the results are kept; `kcl report` can write the page at any time
        print(f"kcl: no page was written: {error}", file=sys.stderr)
        return 0
    if not options.quiet:
        print(f"page:    {out / 'report.html'}")
    return 0


DEMO_BENCHMARK, DEMO_TASKS, DEMO_TRAIN_PER_TASK, DEMO_SEEDS = "permuted-mnist", 5, 5000, (0, 1, 2)


def _demo(options: argparse.Namespace) -> int:
    from kcl.cli.execution import execute_runs
    from kcl.experiments.run_spec import RunSpec
    from kcl.methods.recipes import published_settings
    from kcl.report import figures, page

    specs = [
        RunSpec(
            DEMO_BENCHMARK, method, seed, published_settings(DEMO_BENCHMARK, method), DEMO_TASKS, DEMO_TRAIN_PER_TASK
        )
        for method in ("naive-sgd", "kcl")
        for seed in DEMO_SEEDS
    ]
    records = execute_runs(specs, options, options.out, resume=True)
    figures.save(figures.overview(records), options.out / "overview")
    page.write_page(records, options.out / "report.html", "KCL beside naive SGD on Permuted MNIST")
    if not options.quiet:
        print(f"figure: {options.out / 'overview.png'}\npage:   {options.out / 'report.html'}")
    return 0
