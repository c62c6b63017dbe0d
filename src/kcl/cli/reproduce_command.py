"""`kcl reproduce`: the runs behind the paper's tables and figures, then the tables and figures."""

from __future__ import annotations

import argparse
import sys

import torch

from kcl.cli import paper_options
from kcl.cli.run_commands import add_execution_options, execute_runs, print_lines
from kcl.core.devices import choose_device, choose_threads
from kcl.core.locking import locked
from kcl.experiments.progress import make_display
from kcl.report import figures


def add(command: argparse.ArgumentParser) -> None:
    paper_options.add_options(command)
    add_execution_options(command)
    command.set_defaults(function=_reproduce)


def _reproduce(options: argparse.Namespace) -> int:
    if options.list:
        return print_lines(paper_options.listed())
    request = paper_options.parse(options)
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


def _measure(request: paper_options.Reproduction, options: argparse.Namespace) -> None:
    torch.set_num_threads(choose_threads(options.threads))
    display = make_display(options.quiet)
    try:
        with locked(request.out):
            device, command = choose_device(options.device), options.command_line
            request.measure(device, options.precision, options.resume, command, display.say)
    finally:
        display.close()
