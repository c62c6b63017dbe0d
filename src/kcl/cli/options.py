"""Options that several commands share, and what they stand for. Nothing here loads PyTorch before it is needed."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

from kcl.benchmarks.ways import CLASS_ORDERS, DEFAULT_WAYS
from kcl.cli.commands import named
from kcl.core.devices import choose_device, choose_threads
from kcl.core.files import METRICS
from kcl.core.settings import SCENARIOS
from kcl.engines import RETRIES
from kcl.errors import KclError

Group = argparse._ActionsContainer
ENGINES = ("local", "ray", "slurm")
COMPILE = {"auto": None, "on": True, "off": False}
SEVERAL: dict[str, Any] = {"nargs": "+", "action": "extend", "default": []}
"""An option with one or more values, which may be repeated."""


def option(group: Group, name: str, text: str, **more: Any) -> None:
    """Add an option by its name and, for one that takes a value, what that is called: "--tasks N", "model DIR"."""
    flag, _, value = name.partition(" ")
    if value:
        more["metavar"] = value
    group.add_argument(flag, help=text, **more)


def one_of(registry: str, default: str | None = None) -> Callable[[str], str]:
    """The type of an option whose value is a key of a registry, "module:name", which may have to load PyTorch."""

    def check(value: str) -> str:
        if value != default and value not in (known := named(registry)):
            raise argparse.ArgumentTypeError(f"invalid choice: {value!r} (choose from {', '.join(known)})")
        return value

    return check


# fmt: off
def add_device(command: Group) -> None:
    option(command, "--device", "default: a GPU if there is one", choices=("auto", "cpu", "cuda"), default="auto")
    option(command, "--threads N", "CPU threads (default: 1; the last digits of results depend on it)", type=int)


def add_precision(command: Group) -> None:
    option(command, "--precision NAME", "float32, tf32 or bf16 (default: tf32, which on a CPU is float32; bf16 on a "
           "CPU needs --compile on); see docs/performance.md", default="tf32",
           type=one_of("kcl.ops.precision:PRECISIONS", "tf32"))


def add_compute(command: argparse.ArgumentParser) -> Group:
    """Options that decide where and how fast runs are computed. Returns their group for further ones."""
    where = command.add_argument_group("where and how fast")
    option(where, "--data-dir DIR", "folder of the data (default: KCL_DATA, else the cache)", type=Path)
    add_device(where)
    option(where, "--compile", "fuse the training step with PyTorch's compiler (default: on a GPU if the run is long; "
           "off on a CPU, where it needs a C++ compiler)", choices=tuple(COMPILE), default="auto")
    add_precision(where)
    return where


def add_stream_options(command: argparse.ArgumentParser) -> None:
    """Options that decide what is computed."""
    option(command, "benchmark BENCHMARK", "see `kcl list benchmarks`")
    what = command.add_argument_group("what to run")
    option(what, "--method NAME", "default: kcl; see `kcl list methods`", default="kcl")
    option(what, "--seeds", "seeds as 0,1,2 or 0..4 (default: 0)", default="0")
    option(what, "--tasks N", "number of tasks (default: 20; for split benchmarks what the classes allow)", type=int)
    option(what, "--train-per-task N", "training samples per task (default: all)", type=int)
    option(what, "--scenario", "how runs are tested: task, the task of a sample is named; class, all classes seen so "
           "far are compared; domain, the same where tasks share their classes (default: task)",
           choices=tuple(SCENARIOS))
    option(what, "--ways", "classes per task of a split benchmark: 5; a range such as 3-15 to draw from for each task; "
           f"or 3-15/20 to divide all classes among 20 tasks (default: {DEFAULT_WAYS})")
    option(what, "--class-order", "of a split benchmark (default: fixed)", choices=tuple(CLASS_ORDERS))
    option(what, "--image-size PIXELS", "side length to which split-folder resizes images (default: 84)", type=int)

    settings = command.add_argument_group("settings")
    option(settings, "--recipe NAME", "settings to start from: paper (default), strong or light (docs/strong.md)",
           default="paper", type=one_of("kcl.methods.strong_recipe:RECIPES", "paper"))
    option(settings, "--kernel NAME", "kernel of KCL (default: vrf); see `kcl list kernels`")
    option(settings, "--memory-per-class N", "samples kept per class and task, for any method that keeps samples")
    option(settings, "--set NAME=VALUE", "change settings (see `kcl list settings`); commas make a grid",
           dest="assignments", **SEVERAL)
    option(settings, "--show-settings", "print the settings of the runs and exit", action="store_true")


def add_execution_options(
    command: argparse.ArgumentParser, out: str, resume: str | None = None, default: Path | None = None
) -> Group:
    """Options of every command that trains runs; `out` and `resume` say what --out and --resume mean to it.

    Returns the group `output` for further options.
    """
    where = add_compute(command)
    option(where, "--runs-at-once N", "runs trained together (default: what fits)", type=int)
    several = command.add_argument_group("several machines or processes")
    option(several, "--engine", "where runs are trained (default: local, this machine); see docs/scale.md",
           choices=ENGINES, default="local")
    option(several, "--workers N", "groups of runs trained at the same time (default: local 1, in this process; ray: "
           "what the cluster has room for; slurm: 100 jobs)", type=int)
    option(several, "--address", "with --engine ray: HOST:PORT of the cluster, or auto (default: a new cluster on this "
           "machine)")
    option(several, "--slurm NAME=VALUE", "with --engine slurm: options of sbatch, such as partition=gpu time=120",
           **SEVERAL)
    option(several, "--retries N", "how often a group is tried again that fails, or whose worker dies, without having "
           f"learned another task (default: {RETRIES})", type=int, default=RETRIES)
    option(several, "--checkpoints URL", "copy checkpoints to an fsspec URL (s3://…), for workers that do not share "
           "the output folder")
    option(several, "--gpu-memory GB", "with --engine ray: memory of one GPU, so that several groups can share it",
           type=float)
    output = command.add_argument_group("output")
    option(output, "--out DIR", out, type=Path, default=default)
    option(output, "--log LOGGER", f"tensorboard or wandb, in addition to OUT/{METRICS}; may be repeated",
           action="append", default=[], type=one_of("kcl.experiments.loggers:LOGGERS"))
    option(output, "--quiet", "no progress and no table; errors only", action="store_true")
    saving = command.add_argument_group("saving")
    if resume is not None:
        option(saving, "--resume", resume, action="store_true")
    option(saving, "--checkpoint-every HOW_OFTEN", "save unfinished runs every so many steps (200) or so often (90s, "
           "5min, 1h), and after every task; off: never (default: 5min and after tasks, within 1 %% of the time)",
           default="auto")
    option(saving, "--force", "with --resume: continue although code or machine have changed, and ignore unfinished "
           "runs of other settings", action="store_true")
    return output
# fmt: on


def check_range(options: argparse.Namespace, name: str, low: int, high: int) -> None:
    """Raise a `KclError` if the number that an option was set to is out of range."""
    value = getattr(options, name)
    if value is not None and not low <= value <= high:
        raise KclError(f"--{name.replace('_', '-')} must be a whole number from {low} to {high}, not {value}")


def split_assignment(text: str) -> tuple[str, str]:
    """Name and value of a setting as `--set` takes it."""
    name, equals, value = text.partition("=")
    if not equals:
        raise KclError(f"--set {text!r}: expected NAME=VALUE, such as --set lr=0.05")
    return name, value


def use_device(options: argparse.Namespace) -> str:
    """Set the number of threads, and return the device."""
    import torch

    torch.set_num_threads(choose_threads(options.threads))
    return choose_device(options.device)
