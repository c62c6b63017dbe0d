"""Metrics of runs during training: always a CSV file; TensorBoard and Weights & Biases on request.

A logger is called after every task. It imports what it needs only when it is created.
"""

from __future__ import annotations

import csv
import os
import re
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

from kcl.core.files import METRICS
from kcl.core.opening import regular
from kcl.core.packages import load_package
from kcl.errors import KclError
from kcl.experiments.admission import RunPlan
from kcl.experiments.run_spec import RunSpec
from kcl.training.stream_run import OnProgress, Progress, RunProgress


class Logger(Protocol):
    def task_learned(self, label: str, spec: RunSpec, run: RunProgress, seconds: float) -> None:
        """Log a run after its newest task. `label`: unique within the command; `seconds`: since training started."""

    def close(self) -> None:
        """Write whatever is not written yet: the command ends."""


class CsvLogger:
    """One row per run and task. A run that was repeated after an interruption has rows twice; the last ones count."""

    COLUMNS = (
        "run", "benchmark", "method", "kernel", "seed", "tasks_learned", "tasks",
        "average_accuracy", "forgetting", "accuracy_on_newest_task", "seconds",
    )  # fmt: skip

    def __init__(self, out: Path) -> None:
        try:
            self._file = open(out / METRICS, "a", newline="", encoding="utf-8", opener=regular)  # noqa: SIM115
        except OSError as error:
            raise KclError(f"{out / METRICS} cannot be written: {error.strerror or error}") from None
        self._writer = csv.writer(self._file)
        if self._file.tell() == 0:
            self._writer.writerow(self.COLUMNS)

    def task_learned(self, label: str, spec: RunSpec, run: RunProgress, seconds: float) -> None:
        identity = (label, spec.benchmark, spec.method, spec.kernel, spec.seed, len(run.accuracies), spec.tasks)
        measured = (run.average_accuracy, run.forgetting, run.accuracies[-1], round(seconds, 3))
        self._writer.writerow((*identity, *measured))
        self._file.flush()

    def close(self) -> None:
        self._file.close()


class TensorBoardLogger:
    """Scalars by the number of tasks learned, in one folder per run under OUT/tensorboard."""

    def __init__(self, out: Path) -> None:
        self._tensorboard = load_package(
            "torch.utils.tensorboard", "tensorboard", "--log tensorboard needs tensorboard"
        )
        self._out, self._writers = out / "tensorboard", dict[str, Any]()

    def task_learned(self, label: str, spec: RunSpec, run: RunProgress, seconds: float) -> None:  # noqa: ARG002
        if label not in self._writers:
            folder = self._out / re.sub(r"[^\w.=-]+", "-", label)
            self._writers[label] = self._tensorboard.SummaryWriter(str(folder))
        for name, value in _values(run, seconds).items():
            self._writers[label].add_scalar(name, value, len(run.accuracies))
        self._writers[label].flush()

    def close(self) -> None:
        for writer in self._writers.values():
            writer.close()


class WandbLogger:
    """One W&B run per run. WANDB_MODE=offline keeps them in OUT/wandb; WANDB_PROJECT is the project."""

    def __init__(self, out: Path) -> None:
        self._wandb = load_package("wandb", "wandb", "--log wandb needs wandb")
        self._out, self._runs = out, dict[str, Any]()

    def task_learned(self, label: str, spec: RunSpec, run: RunProgress, seconds: float) -> None:
        if label not in self._runs:
            identity = {"benchmark": spec.benchmark, "method": spec.method, "seed": spec.seed, "tasks": spec.tasks}
            self._runs[label] = self._wandb.init(
                project=os.environ.get("WANDB_PROJECT") or "kcl",
                name=label,
                group=spec.benchmark,
                config={**spec.settings.to_dict(), **identity},
                dir=str(self._out),
                reinit="create_new",  # the runs of a group are open at the same time
            )
        self._runs[label].log(_values(run, seconds), step=len(run.accuracies))

    def close(self) -> None:
        for run in self._runs.values():
            run.finish()


LOGGERS: dict[str, Callable[[Path], Logger]] = {"tensorboard": TensorBoardLogger, "wandb": WandbLogger}


class Loggers:
    """The loggers of a command. A missing package is reported before anything is run; a logger that can no longer write
    is reported and dropped, because a run is worth more than its log.
    """

    def __init__(self, out: Path, names: Sequence[str] = (), say: Callable[[str], None] = lambda _: None) -> None:
        self._loggers: list[Logger] = [LOGGERS[name](out) for name in dict.fromkeys(names)]
        self._loggers.append(CsvLogger(out))
        self._say = say

    def follow(self, plan: RunPlan, specs: Sequence[RunSpec], then: OnProgress = lambda _: None) -> OnProgress:
        """A function that logs the progress of these runs and passes it on to `then`."""
        labels, start = [plan.label(spec) for spec in specs], time.perf_counter()

        def on_progress(progress: Progress) -> None:
            if progress.step is None:
                seconds = time.perf_counter() - start
                for label, spec, run in zip(labels, specs, progress.runs, strict=True):
                    if run.accuracies:
                        self._log(label, spec, run, seconds)
            then(progress)

        return on_progress

    def _log(self, label: str, spec: RunSpec, run: RunProgress, seconds: float) -> None:
        for logger in list(self._loggers):
            try:
                logger.task_learned(label, spec, run, seconds)
            except OSError as error:
                self._loggers.remove(logger)
                with suppress(OSError):
                    logger.close()
                self._say(f"{type(logger).__name__} stops logging: {error.strerror or error}; the runs continue")

    def close(self) -> None:
        for logger in self._loggers:
            with suppress(OSError):
                logger.close()


def _values(run: RunProgress, seconds: float) -> dict[str, float]:
    accuracies = {f"accuracy/task_{task:02d}": value for task, value in enumerate(run.accuracies)}
    values = {"average_accuracy": run.average_accuracy, "forgetting": run.forgetting, "seconds": seconds}
    return {name: value for name, value in (values | accuracies).items() if value is not None}
