"""The options that say where runs are trained: in this process, in worker processes, on Ray or on Slurm."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from kcl.core.devices import choose_device
from kcl.engines import RETRIES
from kcl.errors import KclError

if TYPE_CHECKING:
    from kcl.engines.distributed import EngineChoice
    from kcl.engines.engine import Engine

ENGINES = ("local", "ray", "slurm")


def add_options(command: argparse._ActionsContainer) -> None:
    command.add_argument("--engine", choices=ENGINES, default="local",
                         help="where runs are trained (default: local, this machine); see docs/scale.md")  # fmt: skip
    command.add_argument("--workers", type=int, metavar="N",
                         help="groups of runs trained at the same time (default: local 1, in this process; ray: what "
                         "the cluster has room for; slurm: 100 jobs)")  # fmt: skip
    command.add_argument("--address", help="with --engine ray: HOST:PORT of the cluster, or auto (default: a new "
                         "cluster on this machine)")  # fmt: skip
    command.add_argument("--slurm", nargs="+", action="extend", default=[], metavar="NAME=VALUE",
                         help="with --engine slurm: options of sbatch, such as partition=gpu time=120")  # fmt: skip
    command.add_argument("--retries", type=int, default=RETRIES, metavar="N",
                         help="how often a group is tried again that fails, or whose worker dies, without having "
                         f"learned another task (default: {RETRIES})")  # fmt: skip
    command.add_argument("--checkpoints", metavar="URL",
                         help="copy checkpoints to an fsspec URL (s3://…), for workers that do not share the output "
                         "folder")  # fmt: skip
    command.add_argument("--gpu-memory", type=float, metavar="GB",
                         help="with --engine ray: memory of one GPU, so that several groups can share it")  # fmt: skip


def choose_engine(options: argparse.Namespace) -> EngineChoice | None:
    """None: in this process. Mistakes in the options raise a `KclError`."""
    from kcl.engines.distributed import EngineChoice

    for name, engine in (("address", "ray"), ("gpu_memory", "ray"), ("slurm", "slurm")):
        if getattr(options, name) not in (None, []) and options.engine != engine:
            raise KclError(f"--{name.replace('_', '-')} needs --engine {engine}")
    if options.workers is not None and not 1 <= options.workers <= 100_000:
        raise KclError(f"--workers must be a whole number from 1 to 100000, not {options.workers}")
    if not 0 <= options.retries <= 1000:
        raise KclError(f"--retries must be a whole number from 0 to 1000, not {options.retries}")
    if options.gpu_memory is not None and not 0.0 < options.gpu_memory < 1e6:
        raise KclError(f"--gpu-memory must be a number of gigabytes above 0, not {options.gpu_memory:g}")
    if options.engine == "local" and options.workers in (None, 1):
        return None
    make, device = {"local": _local, "ray": _ray, "slurm": _slurm}[options.engine](options)
    return EngineChoice(make, device, options.retries, options.gpu_memory)


def _local(options: argparse.Namespace) -> tuple[Callable[[Path], Engine], str]:
    from kcl.engines.local_workers import LocalWorkers

    return lambda logs: LocalWorkers(options.workers, logs, options.threads or 1), choose_device(options.device)


def _ray(options: argparse.Namespace) -> tuple[Callable[[Path], Engine], str]:
    from kcl.engines.ray_engine import RayEngine

    cluster = RayEngine(options.address, options.workers)
    return lambda _: cluster, cluster.device(options.device)


def _slurm(options: argparse.Namespace) -> tuple[Callable[[Path], Engine], str]:
    from kcl.engines.slurm_engine import SlurmEngine, parse_options

    sbatch_options = parse_options(options.slurm)
    device = "cuda" if options.device == "cuda" else "cpu"
    return lambda logs: SlurmEngine(logs, options.workers, sbatch_options), device
