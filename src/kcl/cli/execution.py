"""How the runs of one command are done: on which device, by which engine, saved how, until which signal."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple, Self

import torch

from kcl.cli import checkpoint_options, engine_options
from kcl.core.devices import choose_device, choose_threads
from kcl.core.locking import locked
from kcl.data.dataset import Dataset
from kcl.engines.engine import Engine
from kcl.engines.execute import execute
from kcl.engines.in_process import execute_here
from kcl.engines.retries import Failure
from kcl.errors import KclError
from kcl.experiments import remote_checkpoints, resuming
from kcl.experiments.experiment import DatasetName, Experiment
from kcl.experiments.loggers import Loggers
from kcl.experiments.progress import Bar, Lines, Silent
from kcl.experiments.run_folder import Folder
from kcl.experiments.run_spec import RunSpec
from kcl.experiments.task_samples import need_pillow
from kcl.report.engine_status import STANDING
from kcl.training.stopping import Stop


class Stopped(KeyboardInterrupt):
    """A signal came while runs were done: how many of them are kept."""

    def __init__(self, cause: KeyboardInterrupt, done: int, total: int) -> None:
        super().__init__(*cause.args)
        self.cause, self.done, self.total = cause, done, total


class Done(NamedTuple):
    """The finished runs among those asked for, those given up, and the file that holds the first."""

    records: list[dict[str, Any]]
    failures: list[Failure]
    results: Path


class Execution:
    """A context: signals are heeded in it, and the engine ends with it. Every mistake in the options is refused."""

    def __init__(self, options: argparse.Namespace, display: Silent | Lines | Bar) -> None:
        if options.runs_at_once is not None and options.runs_at_once < 1:
            raise KclError(f"--runs-at-once must be at least 1, not {options.runs_at_once}")
        torch.set_num_threads(choose_threads(options.threads))
        self._options, self._display = options, display
        self._save_samples = getattr(options, "save_samples", False)
        if self._save_samples:
            need_pillow()
        self._chosen = engine_options.chosen(options)
        self.device = choose_device(options.device) if self._chosen is None else self._chosen.device
        self._stop, self._open = Stop(), ExitStack()
        self._engine: Engine | None = None
        self._datasets: dict[DatasetName, Dataset] = {}

    def __enter__(self) -> Self:
        self._open.enter_context(self._stop.listening())
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    def run(self, specs: Sequence[RunSpec], out: Path, resume: bool, notes: Mapping[str, Any] | None = None) -> Done:
        """Do the runs that the folder does not hold; `notes` are kept with the results of each."""
        options, display = self._options, self._display
        saving = checkpoint_options.saving(options, resume, self._stop)
        if saving.checkpoints is not None:
            remote_checkpoints.open_url(saving.checkpoints)  # refused before anything is done
        experiment = Experiment(
            specs,
            options.command_line,
            options.data_dir,
            self.device,
            options.runs_at_once,
            {"auto": None, "on": True, "off": False}[options.compile],
            options.precision,
            display.say,
            self._save_samples,
            self._datasets,
            notes,
        )
        self._datasets = experiment.datasets
        failures: list[Failure] = []
        with locked(out):
            (out / STANDING).unlink(missing_ok=True)  # of a command that was killed
            if resume:
                remote_checkpoints.pull_all(saving.checkpoints, out / resuming.FOLDER)
            folder = Folder(out, resume, display.say)
            reused = len(specs) - len(experiment.pending(folder))
            if reused:
                display.say(f"{reused} of {len(specs)} runs are finished in {folder.results} and are not done again")
            display.expect(reused, len(specs))
            loggers = Loggers(out, options.log, display.say)
            try:
                if self._chosen is None:
                    failures = execute_here(experiment, folder, display, saving, loggers)
                else:
                    gpu, retries = self._chosen.gpu_gigabytes, self._chosen.retries
                    failures = execute(experiment, self._made, folder, display, saving, loggers, retries, gpu)
            except KeyboardInterrupt as signal:
                folder.reload()
                raise Stopped(signal, len(experiment.records(folder)), len(specs)) from None
            finally:
                display.close()
                loggers.close()
        return Done(experiment.records(folder), failures, folder.results)

    def _made(self, logs: Path) -> Engine:
        """The engine, made when it is first needed."""
        if self._engine is None and self._chosen is not None:
            self._engine = self._chosen.make(logs)
            self._open.callback(self._engine.close)
        if self._engine is None:
            raise KclError("there is no engine")
        return self._engine
