"""`kcl bench`: how fast kcl trains and answers, as a table and as JSON."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from kcl.cli.options import add_device, add_precision, option, use_device
from kcl.errors import KclError

if TYPE_CHECKING:
    from kcl.bench.answer_time import AnswerTime
    from kcl.bench.step_time import StepTime

COMPILED = {"both": (False, True), "on": (True,), "off": (False,)}
LEAST_STEPS = 20


# fmt: off
def add(command: argparse.ArgumentParser) -> None:
    option(command, "works WORK", "mnist (default), cifar100, miniimagenet; with the strong recipe cifar100-strong, "
           "miniimagenet-strong; or inference, the time of an answer (optionally followed by mnist or cifar100)",
           nargs="*")
    option(command, "--runs", "numbers of runs trained together on a GPU (default: 1,5,20)", default="1,5,20")
    option(command, "--steps", "steps per task (default: those of the benchmark's tasks)", type=int)
    add_device(command)
    option(command, "--compile", "default: both on a GPU, off on a CPU", choices=tuple(COMPILED))
    add_precision(command)
    option(command, "--json FILE", "also write the rows to this file", type=Path)
    command.set_defaults(function=_bench)
# fmt: on


def _bench(options: argparse.Namespace) -> int:
    from kcl.bench import answer_time, step_time
    from kcl.cli.requested_runs import whole_numbers
    from kcl.ops.precision import at_test, products
    from kcl.report.formatting import text_table

    device = use_device(options)
    runs = whole_numbers(options.runs, "--runs")
    if min(runs) < 1 or (options.steps is not None and options.steps < LEAST_STEPS):
        raise KclError(f"--runs must be at least 1 and --steps at least {LEAST_STEPS}")
    if options.works[:1] == ["inference"]:
        answers, options.precision = [], at_test(options.precision)
        with products(options.precision):
            for answer in answer_time.measure(device, options.works[1:]):
                answers.append(answer)
                print(f"{answer.work}, {answer.table} {answer.value}, {answer.queries} queries, {answer.way}: "
                      f"{answer.ms:.3f} ms", file=sys.stderr)  # fmt: skip
        print(text_table(answers, answer_time.COLUMNS))
        return _write_json(answers, device, options)
    compiled, steps = COMPILED[options.compile or ("both" if device == "cuda" else "off")], []
    works = options.works or ["mnist"]
    for step in step_time.measure(works, runs, device, compiled, options.steps, options.precision):
        steps.append(step)
        print(f"{step.work}, {step.engine}, {step.runs} runs: {step.ms_per_step:.3f} ms/step", file=sys.stderr)
    print(text_table(steps, step_time.COLUMNS))
    return _write_json(steps, device, options)


def _write_json(rows: Sequence[StepTime | AnswerTime], device: str, options: argparse.Namespace) -> int:
    if options.json is not None:
        import torch

        from kcl.core.devices import describe_machine
        from kcl.core.files import write_json
        from kcl.ops.precision import used

        precision = used(options.precision, torch.device(device), options.compile in ("on", "both"))
        about = describe_machine(device) | {"precision": precision, "threads": torch.get_num_threads()}
        write_json(options.json, {"command": options.command_line, **about, "rows": [asdict(row) for row in rows]})
    return 0
