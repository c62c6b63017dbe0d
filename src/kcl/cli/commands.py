"""The command line. The only place that parses."""

from __future__ import annotations

import argparse
import io
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

import torch

from kcl import __version__
from kcl.bench import answer_time, step_time
from kcl.benchmarks.registry import BENCHMARKS
from kcl.cli import (
    checkpoint_options,
    data_commands,
    engine_options,
    model_commands,
    paper_options,
    report_commands,
    run_options,
    tune_options,
)
from kcl.cli.demo import demo_specs
from kcl.cli.execution import Done, Execution, Stopped
from kcl.core.devices import choose_device, choose_threads, device_name
from kcl.core.files import write_json
from kcl.core.locking import locked
from kcl.core.run_files import METRICS
from kcl.core.settings import BACKBONES, Summaries
from kcl.engines.retries import describe_failures, first_line, out_of_memory
from kcl.errors import KclError
from kcl.experiments.loggers import LOGGERS
from kcl.experiments.progress import make_display
from kcl.experiments.run_spec import RunSpec
from kcl.methods.kernels import KERNELS
from kcl.methods.recipes import METHODS
from kcl.methods.strong_recipe import RECIPES
from kcl.ops.precision import PRECISIONS, at_test, products, used
from kcl.report import figures, page, results_table
from kcl.training.stopping import exit_code
from kcl.tuning import search_plots, tune


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; a user's mistake is one line on standard error and exit code 2."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a terminal that knows no Greek still gets its answer
            stream.reconfigure(errors="replace")
    given = list(sys.argv[1:] if arguments is None else arguments)
    options = _parser().parse_args(given)
    options.command_line = shlex.join(["kcl", *given])
    try:
        return options.function(options) or (FAILED if getattr(options, "failed", False) else 0)
    except KclError as error:
        print(f"kcl: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt as signal:
        print("kcl: stopped", file=sys.stderr)
        return exit_code(signal)
    except (MemoryError, RuntimeError) as error:
        if not out_of_memory(error):
            raise
        print(f"kcl: out of memory: {first_line(error)}", file=sys.stderr)
        return 2
    except BrokenPipeError:
        sys.stderr.close()
        return 1
    except OSError as error:
        print(f"kcl: {error.strerror or error}", file=sys.stderr)
        return 1


class _Parser(argparse.ArgumentParser):
    """argparse, with mistakes told in one line."""

    def error(self, message: str) -> NoReturn:
        print(f"kcl: {message}; see {self.prog} --help", file=sys.stderr)
        raise SystemExit(2)


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="kcl", description="Kernel continual learning: task after task, without forgetting and without replay."
    )
    parser.add_argument("--version", action="version", version=f"kcl {__version__} (torch {torch.__version__})")
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")

    demo = commands.add_parser("demo", help="KCL beside naive SGD on real MNIST: a table, a figure and a page")
    demo.add_argument("--out", type=Path, default=Path("demo"), help="output folder (default: demo)")
    demo.set_defaults(function=_demo)

    run = commands.add_parser("run", help="learn a benchmark's tasks and keep the results")
    run_options.add_options(run)
    run.add_argument(
        "--out",
        type=Path,
        help="output folder (default: runs/BENCHMARK-METHOD[-RECIPE])",
    )
    run.add_argument("--save-samples", action="store_true",
                     help="keep images of tasks, coresets and mistakes for the page (needs Pillow)")  # fmt: skip
    run.add_argument("--live", action="store_true", help="serve the page to this machine while the runs go on")
    run.add_argument("--port", type=int, default=0, help="with --live (default: a free one)")
    run.add_argument("--resume", action="store_true", help="keep the folder's finished runs and do the rest")
    run.set_defaults(function=_run)

    paper = commands.add_parser("reproduce", help="the paper's tables and figures, beside what it prints")
    paper_options.add_options(paper)
    paper.set_defaults(function=_reproduce)

    tuning = commands.add_parser("tune", help="search settings on the first tasks, then learn the whole stream once")
    tune_options.add_options(tuning)
    tuning.set_defaults(function=_tune)

    for command in (demo, run, paper, tuning):
        command.add_argument("--data-dir", type=Path, help="where the data lie (default: KCL_DATA, then the cache)")
        command.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto")
        command.add_argument(
            "--threads", type=int, help="CPU threads (default: 1; results depend on it in the last digits)"
        )
        command.add_argument(
            "--runs-at-once",
            type=int,
            metavar="N",
            help="trainings per group on a GPU (default: as many as fit); no effect on a CPU",
        )
        command.add_argument("--compile", choices=("auto", "on", "off"), default="auto",
                             help="fuse the step with PyTorch's compiler (default: on a GPU if long; on a CPU, which "
                             "needs a C++ compiler, off)")  # fmt: skip
        command.add_argument("--precision", choices=tuple(PRECISIONS), default="tf32",
                             help="what may be computed in (default: tf32, on a CPU float32; bf16 on a CPU: with "
                             "--compile on); see docs/performance.md")  # fmt: skip
        checkpoint_options.add_options(command)
        engine_options.add_options(command)
        command.add_argument("--log", action="append", choices=tuple(LOGGERS), default=[],
                             help=f"log there as well as in OUT/{METRICS}; may be given twice")  # fmt: skip
        command.add_argument("--quiet", action="store_true", help="no progress, no table; errors only")

    report_commands.add_options(commands.add_parser("report", help="results as a page, as text or as a figure"))
    data_commands.add_commands(commands.add_parser("data", help="find, fetch, verify and prepare data"))
    model_commands.add_commands(commands)

    speed = commands.add_parser("bench", help="time per step, beside a plain loop and a bare SGD step")
    speed.add_argument("works", nargs="*", metavar="WORK",
                       help="mnist (default), cifar100, miniimagenet, and with the strong recipe cifar100-strong, "
                       "miniimagenet-strong; or inference: what an answer costs (of mnist and cifar100, or of those "
                       "named after it)")  # fmt: skip
    speed.add_argument("--runs", default="1,5,20", help="numbers of runs trained together on a GPU (default: 1,5,20)")
    speed.add_argument("--steps", type=int, help="steps per task (default: as many as a task of the benchmark has)")
    speed.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto")
    speed.add_argument("--threads", type=int, help="CPU threads (default: 1)")
    speed.add_argument("--compile", choices=("both", "on", "off"), help="default: both on a GPU, off on a CPU")
    speed.add_argument("--json", type=Path, help="also write the rows to this file")
    speed.add_argument("--precision", choices=tuple(PRECISIONS), default="tf32",
                       help="what kcl may compute in; the plain loop does as PyTorch does by default")  # fmt: skip
    speed.set_defaults(function=_bench)

    listing = commands.add_parser("list", help="what there is, one line each")
    listing.add_argument("what", choices=sorted(LISTS))
    listing.set_defaults(function=_list)
    return parser


FAILED = 1
"""The exit code where some runs were given up and the others are kept."""


def _run(options: argparse.Namespace) -> int:
    specs = run_options.specs(options)
    if options.show_settings:
        return _print_lines(run_options.shown(specs))
    out = run_options.default_out(options)
    with report_commands.live_beside(options, out):
        records = _execute(specs, out, options, options.resume)
    try:
        samples = report_commands.samples_beside([out / report_commands.RESULTS])
        page.write_page(records, out / "report.html", report_commands.default_title(records), samples)
    except KclError as error:  # the results are kept; a page can be made of them at any time
        print(f"kcl: there is no page of the results: {error}", file=sys.stderr)
        return 0
    if not options.quiet:
        print(f"page:    {out / 'report.html'}")
    return 0


def _reproduce(options: argparse.Namespace) -> int:
    if options.list:
        return _print_lines(paper_options.listed())
    reproduction = paper_options.parse(options)
    if options.dry_run:
        return _print_lines(reproduction.plan(options.workers or 1))
    if options.report_only:
        records = reproduction.finished()
    else:
        specs, out = reproduction.specs, reproduction.out
        records = _execute(specs, out, options, options.resume, show=False) if specs else []
        records += reproduction.finished()
        _measure(reproduction, options)
    index = reproduction.write(records)
    if not figures.available():
        print("kcl: no figures were drawn: they need matplotlib; with it, --report-only draws them", file=sys.stderr)
    if not options.quiet:
        print(f"tables and figures: {index}")
    return 0


def _measure(reproduction: paper_options.Reproduction, options: argparse.Namespace) -> None:
    torch.set_num_threads(choose_threads(options.threads))
    display = make_display(options.quiet)
    try:
        with locked(reproduction.out):
            device, command = choose_device(options.device), options.command_line
            reproduction.measure(device, options.precision, options.resume, command, display.say)
    finally:
        display.close()


def _tune(options: argparse.Namespace) -> int:
    """Every signal leaves a search that goes on with --resume; runs given up end it."""
    search, seeds = tune_options.parse(options)
    out, display = search.out, make_display(options.quiet)
    if options.force:
        raise KclError("--force does not go with kcl tune: a search goes on as it was, or begins in another --out")

    def finished(done: Done) -> Done:
        if done.failures:
            _list_failures(done, options)
            raise SystemExit(FAILED)
        return done

    try:
        with Execution(options, display) as execution, locked(out, tune.LOCK):
            best = search.run(lambda *runs: finished(execution.run(*runs)), display.say)
            records = search.final(best, seeds, lambda *runs: finished(execution.run(*runs)))
    except Stopped as signal:
        _say_stopped(signal, out, options, options.resume)
    files, trials = [str(search.write(records))], search.study().finished
    if figures.available():
        files.append(str(figures.save(search_plots.draw(search.space, trials), out / "search")[-1]))
    else:
        print("kcl: the search was not drawn: that needs matplotlib; with it, --resume draws it", file=sys.stderr)
    if not options.quiet:
        print(f"best of {len(trials)} trials: {tune.show(best.settings)}, {best.value:.2f} % on the samples held out")
    if records:
        page.write_page(records, out / "report.html", report_commands.default_title(records))
    if records and not options.quiet:
        print(
            f"{results_table.text(records)}\nresults: {out / report_commands.RESULTS}\npage:    {out / 'report.html'}"
        )
    if not options.quiet:
        print(f"search:  {', '.join(files)}")
    return 0


def _demo(options: argparse.Namespace) -> int:
    records = _execute(demo_specs(), options.out, options, resume=True)
    figures.save(figures.overview(records), options.out / "overview")
    page.write_page(records, options.out / "report.html", "KCL beside naive SGD on Permuted MNIST")
    if not options.quiet:
        print(f"figure: {options.out / 'overview.png'}\npage:   {options.out / 'report.html'}")
    return 0


def _execute(
    specs: list[RunSpec], out: Path, options: argparse.Namespace, resume: bool, show: bool = True
) -> list[dict[str, object]]:
    """Do the runs, show the table if asked to. After a signal: what is finished stays, and how to go on is said."""
    display = make_display(options.quiet)
    try:
        with Execution(options, display) as execution:
            done = execution.run(specs, out, resume)
    except Stopped as signal:
        _say_stopped(signal, out, options, resume)
    _list_failures(done, options)
    if show and not options.quiet:
        print(results_table.text(done.records))
        print(f"results: {done.results}")
    return done.records


def _say_stopped(signal: Stopped, out: Path, options: argparse.Namespace, resume: bool) -> NoReturn:
    again = options.command_line + ("" if resume else " --resume")
    kept = f"{signal.done} of {signal.total} runs are finished and kept in {out}"
    print(f"kcl: stopped; {kept}; to go on: {again}", file=sys.stderr)
    raise SystemExit(exit_code(signal.cause))


def _list_failures(done: Done, options: argparse.Namespace) -> None:
    """Runs that were given up: named, and the exit code tells of them; where nothing else is there, that is all."""
    if done.failures:
        print(f"kcl: {describe_failures(done.failures, options.command_line)}", file=sys.stderr)
        options.failed = True
        if not done.records:
            raise SystemExit(FAILED)


def _bench(options: argparse.Namespace) -> int:
    device = choose_device(options.device)
    torch.set_num_threads(choose_threads(options.threads))
    fused = options.compile or ("both" if device == "cuda" else "off")
    compiled = {"both": (False, True), "on": (True,), "off": (False,)}[fused]
    runs = run_options.whole_numbers(options.runs, "--runs")
    if min(runs) < 1 or (options.steps is not None and options.steps < 20):
        raise KclError("--runs must be at least 1 and --steps at least 20")
    if options.works[:1] == ["inference"]:
        return _bench_inference(device, options)
    rows = []
    for row in step_time.measure(options.works or ["mnist"], runs, device, compiled, options.steps, options.precision):
        rows.append(row)
        print(f"{row.work}, {row.engine}, {row.runs} runs: {row.ms_per_step:.3f} ms/step", file=sys.stderr)
    print(step_time.table(rows))
    _write_rows([row.to_dict() for row in rows], device, options)
    return 0


def _bench_inference(device: str, options: argparse.Namespace) -> int:
    rows, options.precision = [], at_test(options.precision)
    with products(options.precision):
        for row in answer_time.measure(device, options.works[1:]):
            rows.append(row)
            print(f"{row.work}, {row.table} {row.value}, {row.queries} queries, {row.way}: {row.ms:.3f} ms",
                  file=sys.stderr)  # fmt: skip
    print(answer_time.table(rows))
    _write_rows([row.to_dict() for row in rows], device, options)
    return 0


def _write_rows(rows: list[dict[str, object]], device: str, options: argparse.Namespace) -> None:
    if options.json is None:
        return
    about = {"device": device_name(torch.device(device)), "threads": torch.get_num_threads()}
    versions = {"kcl": __version__, "torch": torch.__version__}
    about["precision"] = used(options.precision, torch.device(device), options.compile in ("on", "both"))
    write_json(options.json, {"command": options.command_line, **about, "versions": versions, "rows": rows})


LISTS = {
    "benchmarks": lambda: {name: benchmark.description for name, benchmark in BENCHMARKS.items()},
    "methods": lambda: {name: f"{method.summary} (keeps: {method.keeps})" for name, method in METHODS.items()},
    "kernels": lambda: dict(Summaries(KERNELS)),
    "backbones": lambda: dict(BACKBONES),
    "recipes": lambda: dict(RECIPES),
    "settings": run_options.setting_lines,
}


def _list(options: argparse.Namespace) -> int:
    return _print_lines(LISTS[options.what]())


def _print_lines(lines: dict[str, str]) -> int:
    width = max(map(len, lines))
    for name, text in lines.items():
        print(f"{name:{width}}  {text}".rstrip())
    return 0
