"""How the runs of one command are done: device, engine, checkpoints, signals."""

from __future__ import annotations

import argparse
import re
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, Self

import torch

from kcl.cli.commands import FAILED, Stopped, say
from kcl.cli.options import COMPILE, check_range
from kcl.core.devices import Compute, choose_device, choose_threads
from kcl.core.files import RESULTS, STATUS
from kcl.core.locking import locked
from kcl.core.packages import load_package
from kcl.data.dataset import Dataset
from kcl.engines.dispatcher import Dispatcher
from kcl.engines.engine import Engine
from kcl.engines.job import GROUP_SIZE, make_jobs
from kcl.engines.status import Reporter
from kcl.errors import KclError
from kcl.experiments import remote_checkpoints, resuming
from kcl.experiments.admission import DatasetKey, admit
from kcl.experiments.group_training import LOGS, Experiment, Failure, remaining_groups, train_groups
from kcl.experiments.loggers import Loggers
from kcl.experiments.progress import Display, make_display
from kcl.experiments.resuming import RunOptions
from kcl.experiments.run_folder import Folder
from kcl.experiments.run_spec import RunGroup, RunSpec
from kcl.report import results_table
from kcl.training.checkpointer import Every
from kcl.training.stopping import Stop
from kcl.training.stream_run import OnProgress

UNITS = {"s": 1.0, "min": 60.0, "h": 3600.0}
FAILURES_SHOWN = 20


class Execution:
    """A context that handles signals and closes the engine. Mistakes in the options raise a `KclError` at once."""

    def __init__(self, options: argparse.Namespace, display: Display) -> None:
        check_range(options, "runs_at_once", 1, 1_000_000)
        torch.set_num_threads(choose_threads(options.threads))
        self._options, self._display = options, display
        self._save_samples = getattr(options, "save_samples", False)
        if self._save_samples:
            load_package("PIL", "images", "--save-samples needs Pillow")  # now, not after hours of training
        self._engine = choose_engine(options)
        device = choose_device(options.device) if self._engine is None else self._engine.device
        self.compute = Compute(device, COMPILE[options.compile], options.precision, options.runs_at_once)
        if options.precision == "bf16" and device == "cpu" and not self.compute.compiled:
            display.say("--precision bf16 has no effect on a CPU without --compile on: float32 is used")
        self._stop, self._open = Stop(), ExitStack()
        self._dispatcher: Dispatcher | None = None
        self._datasets: dict[DatasetKey, Dataset] = {}

    def __enter__(self) -> Self:
        self._open.enter_context(self._stop.listening())
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    def run(
        self, specs: Sequence[RunSpec], out: Path, resume: bool, notes: Mapping[str, Any] | None = None
    ) -> list[dict[str, Any]]:
        """Do the runs that are not in the folder yet, and return the results of all; `notes` are added to each.

        Runs that were given up are printed, and `options.failed` is set; without any result the command ends.
        """
        options, display = self._options, self._display
        if options.force and not resume:
            raise KclError("--force needs --resume")
        run_options = RunOptions(
            parse_every(options.checkpoint_every), self._stop, options.force, options.checkpoints,
            options.command_line, notes or {}, self._save_samples,
        )  # fmt: skip
        if options.checkpoints is not None:
            remote_checkpoints.open_url(options.checkpoints)  # raises before any work is done
        plan = admit(specs, self.compute, options.data_dir, display.say, self._datasets)
        self._datasets = plan.datasets
        with locked(out):
            (out / STATUS).unlink(missing_ok=True)  # left by a command that was killed
            if resume:
                remote_checkpoints.pull_all(options.checkpoints, out / resuming.FOLDER)
            folder = Folder(out, resume, display.say)
            experiment = Experiment(plan, folder, run_options, display.say)
            reused = len(specs) - len(plan.pending(folder.finished))
            if reused:
                display.say(f"{reused} of {len(specs)} runs are already finished in {folder.results}")
            display.expect(reused, len(specs))
            loggers = Loggers(out, options.log, display.say)
            try:
                failures = self._train(experiment, folder, loggers)
            except KeyboardInterrupt as signal:
                folder.reload()
                kept = f"{len(plan.records(folder.finished))} of {len(specs)} runs are finished and kept in {out}"
                raise Stopped(signal, f"{kept}; to continue: {_again(options)}") from None
            finally:
                display.close()
                loggers.close()
                with suppress(OSError):
                    (out / STATUS).unlink(missing_ok=True)
        records = plan.records(folder.finished)
        if failures:
            for line in f"kcl: {describe_failures(failures, _again(options))}".split("\n"):
                say(line)
            options.failed = True
            if not records:
                raise SystemExit(FAILED)
        return records

    def _train(self, experiment: Experiment, folder: Folder, loggers: Loggers) -> list[Failure]:
        engine, options = self._engine, self._options
        groups = remaining_groups(experiment, None if engine is None else GROUP_SIZE)
        folder.begin(experiment.plan.specs, options.command_line)
        if engine is None:
            return train_groups(experiment, groups, lambda group: self._watch(experiment, group, loggers))
        if not groups:
            return []
        jobs, logs = make_jobs(experiment, groups, options.gpu_memory), folder.path / LOGS
        if self._dispatcher is None:  # the same workers do all later runs
            engine.open(logs)
            self._dispatcher = Dispatcher(engine, options.retries, self._stop)
            self._open.callback(self._dispatcher.close)
        reporter = Reporter(experiment, folder, self._display, loggers)
        return self._dispatcher.run(jobs, folder.add, reporter, logs)

    def _watch(self, experiment: Experiment, group: RunGroup, loggers: Loggers) -> OnProgress:
        """Log and show the progress of a group that is trained in this process."""
        plan, specs = experiment.plan, group.specs
        several = len(plan.specs) > len(specs)
        place = f"{len(plan.records(experiment.store.finished)) + 1}/{len(plan.specs)} " if several else ""
        on_progress = self._display.watch(place + plan.group_label(specs))
        return loggers.follow(plan, specs, on_progress)


def execute_runs(
    specs: list[RunSpec], options: argparse.Namespace, out: Path, resume: bool, show: bool = True
) -> list[dict[str, Any]]:
    """Train the runs and, with `show`, print the table."""
    with Execution(options, make_display(options.quiet)) as execution:
        records = execution.run(specs, out, resume)
    if records and all(run["diverged"] for run in records):
        options.failed = True
    if show and not options.quiet:
        print(results_table.text(records))
        print(f"results: {out / RESULTS}")
    return records


def _again(options: argparse.Namespace) -> str:
    """The command that does what is left; some always keep what is finished."""
    return resuming.resume_command(options.command_line) if hasattr(options, "resume") else options.command_line


def describe_failures(failures: Sequence[Failure], again: str) -> str:
    """What failed, where the logs are, and the command to try again."""
    count = sum(failure.runs for failure in failures)
    lines = [f"{count} run{'' if count == 1 else 's'} failed:"]
    lines += [f"  {failure.label}: {failure.error}; log: {failure.log}" for failure in failures[:FAILURES_SHOWN]]
    if len(failures) > FAILURES_SHOWN:
        lines.append(f"  and {len(failures) - FAILURES_SHOWN} more groups")
    return "\n".join([*lines, f"to try them again: {again}"])


def choose_engine(options: argparse.Namespace) -> Engine | None:
    """None: in this process. Mistakes in the options raise a `KclError`. Only the chosen engine is imported."""
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


def parse_every(text: str) -> Every:
    """'200', '5min', 'off' or 'auto'."""
    if text in ("off", "0"):
        return Every(seconds=None)
    if text == "auto":
        return Every()
    match = re.fullmatch(r"([0-9]{1,15})|([0-9]{1,15}(?:\.[0-9]*)?) ?(s|min|h)", text)
    if match and match[1]:
        return Every(int(match[1]), None, thrifty=False)
    if match and float(match[2]) > 0.0:
        return Every(None, float(match[2]) * UNITS[match[3]], thrifty=False)
    raise KclError(
        f"--checkpoint-every {text[:40]!r}: expected a number of steps such as 200, "
        "a time such as 90s, 5min or 1h, or off"
    )
