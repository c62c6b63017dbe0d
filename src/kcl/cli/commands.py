"""`kcl`: the table of commands, and how errors are reported.

A command's options and its handler are in the module that the table names. It is imported only when the command is
used, and handlers import what they need, so that `kcl --help` and mistakes in options do not wait for PyTorch.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import io
import shlex
import sys
import warnings
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, NoReturn

from kcl import __version__
from kcl.core.printable import printable
from kcl.errors import KclError, KclWarning
from kcl.training.stopping import exit_code

FAILED = 1
"""Exit code where some runs were given up and the others are kept."""


class Stopped(KeyboardInterrupt):
    """A signal came while runs were training; the message says what is kept."""

    def __init__(self, signal: KeyboardInterrupt, message: str) -> None:
        super().__init__(message)
        self.signal = signal


def say(message: str) -> None:
    print(printable(message), file=sys.stderr)


@contextlib.contextmanager
def saying_warnings() -> Iterator[None]:
    """Warnings that a person is meant to read become lines on standard error."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", KclWarning)
        yield
    for warning in caught:
        say(f"warning: {warning.message}")


def print_lines(lines: dict[str, str]) -> int:
    width = max(map(len, lines))
    for name, text in lines.items():
        print(printable(f"{name:{width}}  {text}".rstrip()))
    return 0


def named(place: str) -> Any:
    """What "module:name" names. The module is imported only now: it may have to load PyTorch."""
    module, _, name = place.partition(":")
    return getattr(importlib.import_module(module), name)


class Command(NamedTuple):
    """`options` adds the options to the command's parser and sets its handler."""

    help: str
    options: str
    examples: tuple[str, ...] = ()


# fmt: off
COMMANDS = {
    "demo": Command("KCL beside naive SGD on real MNIST: a table, a figure and a page", "run_commands:add_demo"),
    "run": Command("train on a benchmark's tasks and save the results", "run_commands:add_run", (
        "kcl run permuted-mnist --seeds 0..4",
        "kcl run split-cifar100 --method ewc --set ewc_strength=1,10,100 --out runs/ewc --resume")),
    "reproduce": Command("the paper's tables and figures, beside the published numbers", "run_commands:add_reproduce", (
        "kcl reproduce all --quick", "kcl reproduce kernels comparison --dry-run")),
    "tune": Command("search settings on the first tasks, then train once on the whole stream",
        "run_commands:add_tune", ("kcl tune permuted-mnist --search lr=0.001..0.5:log kernel=vrf,rbf --trials 64",)),
    "report": Command("results as a page, as text or as a figure", "report_commands:add_options", (
        "kcl report runs", "kcl report runs/a runs/b --out table.md")),
    "data": Command("find, fetch, verify and prepare data", "data_commands:add"),
    "features": Command("features of your own data from a pretrained network, for `kcl update`",
        "data_commands:add_features", (
        "kcl features images/ --backbone network.onnx --out features.npz --size 224 "
        "--mean 0.485 0.456 0.406 --std 0.229 0.224 0.225",)),
    "update": Command("teach a model a new task, or more of one, from your own data", "model_commands:add_update", (
        "kcl update --model model --data pump.csv --task pump --label state",)),
    "predict": Command("classify your own data with a model, with or without a task's name",
        "answer_commands:add_predict", ("kcl predict --model model --input new.csv --out answers.csv",)),
    "evaluate": Command("accuracy and calibration of a model on labelled data", "answer_commands:add_evaluate", (
        "kcl evaluate --model model --data labelled.csv --label state",)),
    "reject-unknown": Command("give no answer to queries unlike those known to be in scope (streaming heads)",
        "model_commands:add_reject_unknown", ("kcl reject-unknown --model model --known fine.csv --error-rate 0.05",)),
    "inspect": Command("what a model knows: tasks, classes, memory, settings, history",
        "answer_commands:add_inspect", ("kcl inspect model",)),
    "forget": Command("forget a task, classes or samples exactly (streaming heads)", "model_commands:add_forget", (
        "kcl forget --model model --task pump --purge",)),
    "merge": Command("merge models with the same features into one (streaming heads)", "model_commands:add_merge", (
        "kcl merge here there --out merged",)),
    "task-free": Command("test a benchmark without naming the task; calibration", "answer_commands:add_task_free", (
        "kcl task-free permuted-mnist --tasks 5 --train-per-task 2000",)),
    "export": Command("write a model as one ONNX file", "model_commands:add_export", (
        "kcl export model --out model.onnx",)),
    "bench": Command("time per step, beside a plain loop and a bare SGD step", "bench_command:add", (
        "kcl bench mnist", "kcl bench inference")),
    "list": Command("benchmarks, methods, kernels and more, one line each", "list_command:add", ("kcl list settings",)),
}
# fmt: on


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command. A user's mistake is one line on standard error and exit code 2."""
    return execute(parse(arguments))


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a terminal that cannot show Greek still gets its answer
            stream.reconfigure(errors="replace")
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    name = next((argument for argument in arguments if not argument.startswith("-")), "")
    parser = _parser([name])
    options, unknown = parser.parse_known_args(arguments)
    if unknown:
        parser.error(f"unrecognized arguments: {' '.join(unknown)}{_setting_meant(options, unknown, arguments)}")
    options.command_line = shlex.join(["kcl", *arguments])
    return options


def _setting_meant(options: argparse.Namespace, unknown: list[str], arguments: list[str]) -> str:
    """The hint for a setting that was given as an option, such as --lr 0.1."""
    option = next((argument for argument in unknown if argument.startswith("--")), "")
    flag, equals, value = option.partition("=")
    name = flag.lstrip("-").replace("-", "_")
    if option and not equals:
        value = next(iter(arguments[arguments.index(option) + 1 :]), "")
    if not value or not hasattr(options, "assignments"):
        return ""
    from kcl.core.settings import meant
    from kcl.methods.recipes import METHODS  # loads PyTorch

    names = {setting for method in METHODS.values() for setting in method.settings_type.names()}
    return "".join(f" (did you mean --set {setting}={value}?)" for setting in meant(name, sorted(names)))


def execute(options: argparse.Namespace) -> int:
    try:
        return options.function(options) or (FAILED if getattr(options, "failed", False) else 0)
    except KclError as error:
        say(f"kcl: {error}")
        return 2
    except Stopped as stopped:
        say(f"kcl: stopped; {stopped}")
        return exit_code(stopped.signal)
    except KeyboardInterrupt as interrupt:
        print("kcl: stopped", file=sys.stderr)
        return exit_code(interrupt)
    except (MemoryError, RuntimeError) as error:
        from kcl.experiments.group_training import first_line, out_of_memory

        if not out_of_memory(error):
            raise
        say(f"kcl: out of memory: {first_line(error)}")
        return 2
    except BrokenPipeError:
        sys.stderr.close()
        return 1
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        say(f"kcl: {where}{error.strerror or error}")
        return 1


class _Parser(argparse.ArgumentParser):
    """argparse with one-line error messages."""

    def error(self, message: str) -> NoReturn:
        print(f"kcl: {message}; see {self.prog} --help", file=sys.stderr)
        raise SystemExit(2)


class _Version(argparse.Action):
    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> NoReturn:
        import torch

        print(f"kcl {__version__} (torch {torch.__version__})")
        parser.exit()


def _parser(names: Sequence[str] = tuple(COMMANDS)) -> argparse.ArgumentParser:
    """The parser of all commands, with the options of those named."""
    parser = _Parser(
        prog="kcl", description="Kernel continual learning: task after task, without forgetting and without replay."
    )
    parser.add_argument("--version", action=_Version, nargs=0, help="show the versions of kcl and PyTorch and exit")
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    for name, command in COMMANDS.items():
        subparser = commands.add_parser(name, help=command.help, formatter_class=argparse.RawDescriptionHelpFormatter)
        if name in names:
            subparser.description = f"{command.help[0].upper()}{command.help[1:]}."
            subparser.epilog = "\n  ".join(["examples:", *command.examples]) if command.examples else None
            named(f"kcl.cli.{command.options}")(subparser)
    return parser
