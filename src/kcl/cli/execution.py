"""How the runs of one command are done: device, engine, checkpoints, signals."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple, NoReturn, Self

import torch

from kcl.cli.commands import FAILED, say
from kcl.cli.options import COMPILE, choose_engine, choose_saving
from kcl.core.devices import Compute, choose_device, choose_threads
from kcl.core.files import STATUS
from kcl.core.locking import locked
from kcl.core.packages import load_package
from kcl.data.dataset import Dataset
from kcl.engines.distributed import GROUP_SIZE, make_jobs, run_distributed
from kcl.errors import KclError
from kcl.experiments import remote_checkpoints, resuming
from kcl.experiments.admission import DatasetKey, admit
from kcl.experiments.group_training import LOGS, Failure, train_groups
from kcl.experiments.grouping import Experiment, remaining_groups
from kcl.experiments.loggers import Loggers
from kcl.experiments.progress import Display, make_display
from kcl.experiments.run_folder import Folder
from kcl.experiments.run_spec import RunGroup, RunSpec
from kcl.report import results_table
from kcl.training.stopping import Stop, exit_code
from kcl.training.stream_run import OnProgress


class Stopped(KeyboardInterrupt):
    """A signal came while runs were training; `done` of `total` are stored."""

    def __init__(self, cause: KeyboardInterrupt, done: int, total: int) -> None:
        super().__init__(*cause.args)
        self.cause, self.done, self.total = cause, done, total


class Done(NamedTuple):
    """The results of the requested runs, the runs that were given up, and the file of the results."""

    records: list[dict[str, Any]]
    failures: list[Failure]
    results: Path


class Execution:
    """A context that handles signals and closes the engine. Mistakes in the options raise a `KclError` at once."""

    def __init__(self, options: argparse.Namespace, display: Display) -> None:
        if options.runs_at_once is not None and options.runs_at_once < 1:
            raise KclError(f"--runs-at-once must be at least 1, not {options.runs_at_once}")
        torch.set_num_threads(choose_threads(options.threads))
        self._options, self._display = options, display
        self._save_samples = getattr(options, "save_samples", False)
        if self._save_samples:
            load_package("PIL", "images", "--save-samples needs Pillow")  # now, not after hours of training
        self._engine, self._engine_open = choose_engine(options), False
        device = choose_device(options.device) if self._engine is None else self._engine.device
        self.compute = Compute(device, COMPILE[options.compile], options.precision, options.runs_at_once)
        if options.precision == "bf16" and device == "cpu" and not self.compute.compiled:
            display.say("--precision bf16 has no effect on a CPU without --compile on: float32 is used")
        self._stop, self._open = Stop(), ExitStack()
        self._datasets: dict[DatasetKey, Dataset] = {}

    def __enter__(self) -> Self:
        self._open.enter_context(self._stop.listening())
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    def run(self, specs: Sequence[RunSpec], out: Path, resume: bool, notes: Mapping[str, Any] | None = None) -> Done:
        """Do the runs that are not in the folder yet; `notes` are added to every result."""
        options, display = self._options, self._display
        saving = choose_saving(options, resume, self._stop)
        if saving.checkpoints is not None:
            remote_checkpoints.open_url(saving.checkpoints)  # raises before any work is done
        plan = admit(specs, self.compute, options.data_dir, display.say, self._datasets)
        self._datasets = plan.datasets
        with locked(out):
            (out / STATUS).unlink(missing_ok=True)  # left by a command that was killed
            if resume:
                remote_checkpoints.pull_all(saving.checkpoints, out / resuming.FOLDER)
            folder = Folder(out, resume, display.say)
            experiment = Experiment(
                plan, folder, options.command_line, saving, display.say, notes or {}, self._save_samples
            )
            reused = len(specs) - len(plan.pending(folder.finished))
            if reused:
                display.say(f"{reused} of {len(specs)} runs are already finished in {folder.results}")
            display.expect(reused, len(specs))
            loggers = Loggers(out, options.log, display.say)
            try:
                failures = self._train(experiment, folder, loggers)
            except KeyboardInterrupt as signal:
                folder.reload()
                raise Stopped(signal, len(plan.records(folder.finished)), len(specs)) from None
            finally:
                display.close()
                loggers.close()
        return Done(plan.records(folder.finished), failures, folder.results)

    def _train(self, experiment: Experiment, folder: Folder, loggers: Loggers) -> list[Failure]:
        engine, options = self._engine, self._options
        groups = remaining_groups(experiment, None if engine is None else GROUP_SIZE)
        folder.begin(experiment.plan.specs, experiment.command)
        if engine is None:
            return train_groups(experiment, groups, lambda group: self._watch(experiment, group, loggers))
        if not groups:
            return []
        if not self._engine_open:  # the same workers do all later runs
            engine.open(folder.path / LOGS)
            self._open.callback(engine.close)
            self._engine_open = True
        jobs = make_jobs(experiment, groups, options.gpu_memory)
        return run_distributed(experiment, jobs, engine, options.retries, folder, self._display, loggers)

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
    """Train the runs and, with `show`, print the table. A signal keeps what is finished and prints how to resume."""
    try:
        with Execution(options, make_display(options.quiet)) as execution:
            done = execution.run(specs, out, resume)
    except Stopped as signal:
        exit_stopped(signal, options, out, resume)
    print_failures(done, options)
    options.failed = bool(done.failures) or (bool(done.records) and all(run["diverged"] for run in done.records))
    if show and not options.quiet:
        print(results_table.text(done.records))
        print(f"results: {done.results}")
    return done.records


def exit_stopped(signal: Stopped, options: argparse.Namespace, out: Path, resume: bool) -> NoReturn:
    again = options.command_line + ("" if resume else " --resume")
    kept = f"{signal.done} of {signal.total} runs are finished and kept in {out}"
    print(f"kcl: stopped; {kept}; to continue: {again}", file=sys.stderr)
    raise SystemExit(exit_code(signal.cause))


def describe_failures(failures: Sequence[Failure], command: str, most: int = 20) -> str:
    """What failed, where the logs are, and how to try again."""
    count = sum(failure.runs for failure in failures)
    lines = [f"{count} run{'' if count == 1 else 's'} failed:"]
    lines += [f"  {failure.label}: {failure.error}; log: {failure.log}" for failure in failures[:most]]
    if len(failures) > most:
        lines.append(f"  and {len(failures) - most} more groups")
    return "\n".join([*lines, f"to try them again: {resuming.resume_command(command)}"])


def print_failures(done: Done, options: argparse.Namespace) -> None:
    """Name the runs that were given up. The exit code reports them; without any finished run the command ends here."""
    if done.failures:
        for line in f"kcl: {describe_failures(done.failures, options.command_line)}".split("\n"):
            say(line)
        options.failed = True
        if not done.records:
            raise SystemExit(FAILED)
