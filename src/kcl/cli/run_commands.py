"""`kcl run` and `kcl demo`: train, save the results, show the table, write the page."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from kcl.cli.commands import print_lines
from kcl.cli.options import add_execution_options, add_stream_options
from kcl.core.files import RESULTS
from kcl.errors import KclError

EXAMPLES = """examples:
  kcl run permuted-mnist --seeds 0..4
  kcl run split-cifar100 --method ewc --set ewc_strength=1,10,100 --out runs/ewc --resume
"""


def add_run(command: argparse.ArgumentParser) -> None:
    command.usage, command.epilog = "kcl run BENCHMARK [OPTION …]", EXAMPLES
    add_stream_options(command)
    output, saving = add_execution_options(command)
    output.add_argument("--out", type=Path, metavar="DIR",
                        help="output folder (default: runs/BENCHMARK-METHOD[-RECIPE])")  # fmt: skip
    saving.add_argument("--resume", action="store_true", help="keep the folder's finished runs and do the rest")
    output.add_argument("--save-samples", action="store_true",
                        help="save images of tasks, coresets and mistakes for the page (needs Pillow)")  # fmt: skip
    output.add_argument("--live", action="store_true", help="serve the page on this machine while training")
    output.add_argument("--port", type=int, default=0, help="port of --live (default: a free one)")
    command.set_defaults(function=_run)


def add_demo(command: argparse.ArgumentParser) -> None:
    output, _ = add_execution_options(command)
    output.add_argument("--out", type=Path, default=Path("demo"), metavar="DIR", help="output folder (default: demo)")
    command.set_defaults(function=_demo)


def _run(options: argparse.Namespace) -> int:
    from kcl.cli import report_commands, requested_runs
    from kcl.cli.execution import execute_runs
    from kcl.report import page

    specs = requested_runs.specs(options)
    if options.show_settings:
        return print_lines(requested_runs.shown(specs))
    out = requested_runs.default_out(options)
    with report_commands.live_beside(options, out):
        records = execute_runs(specs, options, out, options.resume)
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
