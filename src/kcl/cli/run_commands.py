"""`kcl run` and `kcl demo`: train, save the results, show the table, write the page."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from kcl.benchmarks.ways import CLASS_ORDERS, DEFAULT_WAYS
from kcl.cli import checkpoint_options, engine_options
from kcl.cli.commands import FAILED
from kcl.cli.option_groups import OneOf, add_compile, add_data_dir, add_device, add_precision
from kcl.core.run_files import METRICS
from kcl.errors import KclError
from kcl.training.stopping import exit_code

if TYPE_CHECKING:
    from kcl.cli.execution import Done, Stopped
    from kcl.experiments.run_spec import RunSpec

Group = argparse._ArgumentGroup
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


def add_stream_options(command: argparse.ArgumentParser) -> None:
    """Options that decide what is computed."""
    command.add_argument("benchmark", metavar="BENCHMARK", help="see `kcl list benchmarks`")
    what = command.add_argument_group("what to run")
    what.add_argument("--method", default="kcl", metavar="NAME", help="default: kcl; see `kcl list methods`")
    what.add_argument("--seeds", default="0", help="seeds as 0,1,2 or 0..4 (default: 0)")
    what.add_argument("--tasks", type=int, metavar="N",
                      help="number of tasks (default: 20; for split benchmarks what the classes allow)")  # fmt: skip
    what.add_argument("--train-per-task", type=int, metavar="N", help="training samples per task (default: all)")
    what.add_argument("--ways", help="classes per task of a split benchmark: 5; a range such as 3-15 to draw from for "
                      "each task; or 3-15/20 to divide all classes among 20 tasks "
                      f"(default: {DEFAULT_WAYS})")  # fmt: skip
    what.add_argument("--class-order", choices=tuple(CLASS_ORDERS), help="of a split benchmark (default: fixed)")
    what.add_argument("--image-size", type=int, metavar="PIXELS",
                      help="side length to which split-folder resizes images (default: 84)")  # fmt: skip

    settings = command.add_argument_group("settings")
    settings.add_argument("--recipe", action=OneOf, registry="kcl.methods.strong_recipe:RECIPES", default="paper",
                          metavar="NAME", help="settings to start from: paper (default), or strong "
                          "(docs/strong.md)")  # fmt: skip
    settings.add_argument("--kernel", metavar="NAME", help="kernel of KCL (default: vrf); see `kcl list kernels`")
    settings.add_argument("--memory-per-class", metavar="N",
                          help="samples kept per class and task, for any method that keeps samples")  # fmt: skip
    settings.add_argument("--set", nargs="+", action="extend", default=[], metavar="NAME=VALUE", dest="assignments",
                          help="change settings (see `kcl list settings`); commas make a grid")  # fmt: skip
    settings.add_argument("--show-settings", action="store_true", help="print the settings of the runs and exit")


def add_execution_options(command: argparse.ArgumentParser) -> tuple[Group, Group]:
    """Options of every command that trains runs. Returns the groups `output` and `saving` for further options."""
    where = command.add_argument_group("where and how fast")
    add_data_dir(where)
    add_device(where)
    where.add_argument("--runs-at-once", type=int, metavar="N", help="runs trained together (default: what fits)")
    add_compile(where)
    add_precision(where)
    engine_options.add_options(where)
    output = command.add_argument_group("output")
    output.add_argument("--log", action=OneOf, registry="kcl.experiments.loggers:LOGGERS", default=[], metavar="LOGGER",
                        help=f"tensorboard or wandb, in addition to OUT/{METRICS}; may be repeated")  # fmt: skip
    output.add_argument("--quiet", action="store_true", help="no progress and no table; errors only")
    saving = command.add_argument_group("saving")
    checkpoint_options.add_options(saving)
    return output, saving


def execute_runs(
    specs: list[RunSpec], options: argparse.Namespace, out: Path, resume: bool, show: bool = True
) -> list[dict[str, Any]]:
    """Train the runs and, with `show`, print the table. A signal keeps what is finished and prints how to resume."""
    from kcl.cli.execution import Execution, Stopped
    from kcl.experiments.progress import make_display
    from kcl.report import results_table

    try:
        with Execution(options, make_display(options.quiet)) as execution:
            done = execution.run(specs, out, resume)
    except Stopped as signal:
        exit_stopped(signal, options, out, resume)
    print_failures(done, options)
    if show and not options.quiet:
        print(results_table.text(done.records))
        print(f"results: {done.results}")
    return done.records


def exit_stopped(signal: Stopped, options: argparse.Namespace, out: Path, resume: bool) -> NoReturn:
    again = options.command_line + ("" if resume else " --resume")
    kept = f"{signal.done} of {signal.total} runs are finished and kept in {out}"
    print(f"kcl: stopped; {kept}; to go on: {again}", file=sys.stderr)
    raise SystemExit(exit_code(signal.cause))


def print_failures(done: Done, options: argparse.Namespace) -> None:
    """Name the runs that were given up. The exit code reports them; without any finished run the command ends here."""
    from kcl.experiments.failures import describe_failures

    if done.failures:
        print(f"kcl: {describe_failures(done.failures, options.command_line)}", file=sys.stderr)
        options.failed = True
        if not done.records:
            raise SystemExit(FAILED)


def print_lines(lines: dict[str, str]) -> int:
    width = max(map(len, lines))
    for name, text in lines.items():
        print(f"{name:{width}}  {text}".rstrip())
    return 0


def _run(options: argparse.Namespace) -> int:
    from kcl.cli import report_commands, run_options
    from kcl.report import page

    specs = run_options.specs(options)
    if options.show_settings:
        return print_lines(run_options.shown(specs))
    out = run_options.default_out(options)
    with report_commands.live_beside(options, out):
        records = execute_runs(specs, options, out, options.resume)
    try:
        samples = report_commands.samples_beside([out / report_commands.RESULTS])
        page.write_page(records, out / "report.html", report_commands.default_title(records), samples)
    except KclError as error:  # the results are kept; `kcl report` can write the page at any time
        print(f"kcl: no page was written: {error}", file=sys.stderr)
        return 0
    if not options.quiet:
        print(f"page:    {out / 'report.html'}")
    return 0


DEMO_BENCHMARK, DEMO_TASKS, DEMO_TRAIN_PER_TASK, DEMO_SEEDS = "permuted-mnist", 5, 5000, (0, 1, 2)


def _demo(options: argparse.Namespace) -> int:
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
