"""Options that several commands share, and what they stand for. Nothing here loads PyTorch before it is needed."""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kcl.benchmarks.ways import CLASS_ORDERS, DEFAULT_WAYS
from kcl.cli.commands import named
from kcl.core.devices import choose_device, choose_threads
from kcl.core.files import METRICS
from kcl.core.settings import SCENARIOS
from kcl.engines import RETRIES
from kcl.errors import KclError

if TYPE_CHECKING:
    from kcl.engines.engine import Engine
    from kcl.experiments.resuming import Saving
    from kcl.training.checkpointer import Every
    from kcl.training.stopping import Stop

Group = argparse._ArgumentGroup
DEVICES = ("auto", "cpu", "cuda")
ENGINES = ("local", "ray", "slurm")
COMPILE = {"auto": None, "on": True, "off": False}
UNITS = {"s": 1.0, "min": 60.0, "h": 3600.0}


class OneOf(argparse.Action):
    """A key of a registry, which is imported only when a value is given: it may have to load PyTorch."""

    def __init__(self, *, registry: str, **options: Any) -> None:
        super().__init__(**options)
        self.registry = registry

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        value: str | Sequence[Any] | None,
        option_string: str | None = None,
    ) -> None:
        known = named(self.registry)
        if value not in known:
            parser.error(f"argument {option_string}: invalid choice: {value!r} (choose from {', '.join(known)})")
        several = isinstance(self.default, list)
        setattr(namespace, self.dest, [*getattr(namespace, self.dest), value] if several else value)


def add_device(command: argparse._ActionsContainer) -> None:
    command.add_argument("--device", choices=DEVICES, default="auto", help="default: a GPU if there is one")
    command.add_argument("--threads", type=int, metavar="N",
                         help="CPU threads (default: 1; the last digits of results depend on it)")  # fmt: skip


def add_precision(command: argparse._ActionsContainer) -> None:
    command.add_argument("--precision", action=OneOf, registry="kcl.ops.precision:PRECISIONS", default="tf32",
                         metavar="NAME", help="float32, tf32 or bf16 (default: tf32, which on a CPU is float32; bf16 "
                         "on a CPU needs --compile on); see docs/performance.md")  # fmt: skip


def add_compute(command: argparse.ArgumentParser) -> Group:
    """Options that decide where and how fast runs are computed. Returns their group for further ones."""
    where = command.add_argument_group("where and how fast")
    where.add_argument("--data-dir", type=Path, metavar="DIR", help="folder of the data (default: KCL_DATA, else the "
                       "cache)")  # fmt: skip
    add_device(where)
    where.add_argument("--compile", choices=tuple(COMPILE), default="auto",
                       help="fuse the training step with PyTorch's compiler (default: on a GPU if the run is long; "
                       "off on a CPU, where it needs a C++ compiler)")  # fmt: skip
    add_precision(where)
    return where


def add_stream_options(command: argparse.ArgumentParser) -> None:
    """Options that decide what is computed."""
    command.add_argument("benchmark", metavar="BENCHMARK", help="see `kcl list benchmarks`")
    what = command.add_argument_group("what to run")
    what.add_argument("--method", default="kcl", metavar="NAME", help="default: kcl; see `kcl list methods`")
    what.add_argument("--seeds", default="0", help="seeds as 0,1,2 or 0..4 (default: 0)")
    what.add_argument("--tasks", type=int, metavar="N",
                      help="number of tasks (default: 20; for split benchmarks what the classes allow)")  # fmt: skip
    what.add_argument("--train-per-task", type=int, metavar="N", help="training samples per task (default: all)")
    what.add_argument("--scenario", choices=tuple(SCENARIOS),
                      help="how runs are tested: task, the task of a sample is named; class, all classes seen so far "
                      "are compared; domain, the same where tasks share their classes (default: task)")  # fmt: skip
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
    where = add_compute(command)
    where.add_argument("--runs-at-once", type=int, metavar="N", help="runs trained together (default: what fits)")
    several = command.add_argument_group("several machines or processes")
    several.add_argument("--engine", choices=ENGINES, default="local",
                         help="where runs are trained (default: local, this machine); see docs/scale.md")  # fmt: skip
    several.add_argument("--workers", type=int, metavar="N",
                         help="groups of runs trained at the same time (default: local 1, in this process; ray: what "
                         "the cluster has room for; slurm: 100 jobs)")  # fmt: skip
    several.add_argument("--address", help="with --engine ray: HOST:PORT of the cluster, or auto (default: a new "
                         "cluster on this machine)")  # fmt: skip
    several.add_argument("--slurm", nargs="+", action="extend", default=[], metavar="NAME=VALUE",
                         help="with --engine slurm: options of sbatch, such as partition=gpu time=120")  # fmt: skip
    several.add_argument("--retries", type=int, default=RETRIES, metavar="N",
                         help="how often a group is tried again that fails, or whose worker dies, without having "
                         f"learned another task (default: {RETRIES})")  # fmt: skip
    several.add_argument("--checkpoints", metavar="URL",
                         help="copy checkpoints to an fsspec URL (s3://…), for workers that do not share the output "
                         "folder")  # fmt: skip
    several.add_argument("--gpu-memory", type=float, metavar="GB",
                         help="with --engine ray: memory of one GPU, so that several groups can share it")  # fmt: skip
    output = command.add_argument_group("output")
    output.add_argument("--log", action=OneOf, registry="kcl.experiments.loggers:LOGGERS", default=[], metavar="LOGGER",
                        help=f"tensorboard or wandb, in addition to OUT/{METRICS}; may be repeated")  # fmt: skip
    output.add_argument("--quiet", action="store_true", help="no progress and no table; errors only")
    saving = command.add_argument_group("saving")
    saving.add_argument("--checkpoint-every", metavar="HOW_OFTEN", default="auto",
                         help="save unfinished runs every so many steps (200) or so often (90s, 5min, 1h), and after "
                         "every task; off: never (default: 5min and after tasks, within 1 %% of the time)")  # fmt: skip
    saving.add_argument("--force", action="store_true",
                         help="with --resume: continue although code or machine have changed, and ignore "
                         "unfinished runs of other settings")  # fmt: skip
    return output, saving


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


def choose_engine(options: argparse.Namespace) -> Engine | None:
    """None: in this process. Mistakes in the options raise a `KclError`."""
    for name, engine in (("address", "ray"), ("gpu_memory", "ray"), ("slurm", "slurm")):
        if getattr(options, name) not in (None, []) and options.engine != engine:
            raise KclError(f"--{name.replace('_', '-')} needs --engine {engine}")
    check_range(options, "workers", 1, 100_000)
    check_range(options, "retries", 0, 1000)
    if options.gpu_memory is not None and not 0.0 < options.gpu_memory < 1e6:
        raise KclError(f"--gpu-memory must be a number of gigabytes above 0, not {options.gpu_memory:g}")
    if options.engine == "ray":
        from kcl.engines.ray_engine import RayEngine

        return RayEngine(options.address, options.workers, options.device)
    if options.engine == "slurm":
        from kcl.engines.slurm_engine import SlurmEngine, parse_options

        device = "cuda" if options.device == "cuda" else "cpu"
        return SlurmEngine(options.workers, parse_options(options.slurm), device)
    if options.workers in (None, 1):
        return None
    from kcl.engines.local_workers import LocalWorkers

    return LocalWorkers(options.workers, choose_device(options.device), options.threads or 1)


def choose_saving(options: argparse.Namespace, resume: bool, stop: Stop) -> Saving:
    from kcl.experiments.resuming import Saving  # loads PyTorch

    if options.force and not resume:
        raise KclError("--force needs --resume")
    return Saving(parse_every(options.checkpoint_every), stop, options.force, getattr(options, "checkpoints", None))


def parse_every(text: str) -> Every:
    """'200', '5min', 'off' or 'auto'."""
    from kcl.training.checkpointer import Every  # loads PyTorch

    if text == "auto":
        return Every()
    if text in ("off", "0"):
        return Every(seconds=None)
    if text.isascii() and text.isdecimal() and len(text) <= 15:
        return Every(steps=int(text), seconds=None, thrifty=False)
    number, unit = text.rstrip("abcdefghijklmnopqrstuvwxyz"), text.lstrip("0123456789. ")
    try:
        seconds = float(number) * UNITS[unit]
        if not 0.0 < seconds < math.inf:
            raise ValueError
    except (ValueError, KeyError):
        raise KclError(
            f"--checkpoint-every {text[:40]!r}: expected a number of steps such as 200, "
            "a time such as 90s, 5min or 1h, or off"
        ) from None
    return Every(seconds=seconds, thrifty=False)
