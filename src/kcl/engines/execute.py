"""An experiment done by an engine: what it is told becomes results, logs, and a view of where all stands."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

from kcl.core.files import write_json
from kcl.engines import job_planning
from kcl.engines.dispatcher import Dispatcher
from kcl.engines.engine import Engine
from kcl.engines.job import Message, Needs, Order
from kcl.engines.retries import LOGS, Attempts, Failure
from kcl.engines.status_tracker import Board
from kcl.errors import KclError
from kcl.experiments import resuming
from kcl.experiments.experiment import Experiment, Group
from kcl.experiments.loggers import Loggers
from kcl.experiments.progress import duration
from kcl.experiments.resuming import Saving
from kcl.experiments.run_folder import Folder
from kcl.report.engine_status import STANDING
from kcl.training.cuda_graph import Step
from kcl.training.run_progress import Standing
from kcl.training.stream_run import OnProgress, Progress

EVERY = 1.0
"""Seconds between two views of where all stands."""
PATIENCE = 60.0
"""Seconds between two words about work that nobody has room for."""


class Display(Protocol):
    def say(self, message: str) -> None: ...

    def stand(self, lines: Sequence[str]) -> None: ...


def execute(
    experiment: Experiment,
    make_engine: Callable[[Path], Engine],
    folder: Folder,
    display: Display,
    saving: Saving,
    loggers: Loggers,
    retries: int,
    gpu_gigabytes: float | None = None,
) -> list[Failure]:
    """Do the runs that are not finished yet; those that were given up. `make_engine` takes the folder for logs."""
    at_once = experiment.runs_at_once or (1 if experiment.device.type == "cpu" else job_planning.TOGETHER)
    groups = experiment.plan(folder, saving, display.say, at_once)
    orders = job_planning.orders(experiment, groups, str(folder.path.resolve()), saving, gpu_gigabytes)
    logs = folder.path / LOGS
    attempts = Attempts(logs, retries)
    desk = _Desk(experiment, folder, display, saving.checkpoints, loggers)
    try:
        if orders:
            Dispatcher(make_engine(logs), folder.add_new, desk, attempts, desk.label, saving.stop).run(orders)
    finally:
        with suppress(OSError):
            (folder.path / STANDING).unlink(missing_ok=True)
    return attempts.given_up


class _Desk:
    """Told of everything: keeps the board, the loggers and the display, and removes checkpoints that are done with."""

    def __init__(
        self, experiment: Experiment, folder: Folder, display: Display, url: str | None, loggers: Loggers
    ) -> None:
        self._experiment, self._folder, self._display = experiment, folder, display
        self._url, self._loggers = url, loggers
        done = len(experiment.specs) - len(experiment.pending(folder))
        self._board = Board(done, len(experiment.specs), self.label)
        self._logged: dict[str, OnProgress] = {}
        self._shown, self._warned = 0.0, -PATIENCE

    def label(self, order: Order) -> str:
        return self._experiment.group_label(Group(order.specs))

    def queued(self, orders: Sequence[Order]) -> None:
        self._board.expect(orders)

    def started(self, order: Order) -> None:
        self._board.started(order)
        self._logged[order.name] = self._experiment.logged(order.specs, lambda _: None, self._loggers)

    def progressed(self, order: Order, worker: str, message: Message) -> None:
        self._board.progressed(order, worker, message)
        if message["kind"] == "say":
            self._display.say(f"{worker}: {message['text']}")
        elif message["step"] is None and len(message["runs"]) == len(order.runs):
            self._logged[order.name](_progress(message))

    def kept(self, order: Order, worker: str, records: Sequence[dict[str, Any]]) -> None:
        for record in records:
            self._board.kept(order, worker, record)

    def ended(self, order: Order, worker: str, message: Message, again: bool) -> None:
        kind = message["kind"]
        self._board.ended(order, worker, well=kind == "done", again=again)
        self._logged.pop(order.name, None)
        if kind == "done":
            for name in message["checkpoints"]:
                self._forget(str(name))
        elif kind in ("failed", "lost"):
            then = "it is tried again" if again else "it is given up"
            self._display.say(f"{self.label(order)} on {worker}: {message.get('error')}; {then}")

    def _forget(self, name: str) -> None:
        place = self._folder.path / resuming.FOLDER / Path(name).name
        self._folder.forget(place, self._url)

    def stuck(self, needs: Sequence[Needs]) -> None:
        """Nothing runs and nothing can be begun: a node may come, but whoever waits should know for what."""
        if time.monotonic() - self._warned < PATIENCE:
            return
        self._warned = time.monotonic()
        least = min(needs, key=lambda own: (own.gpus, own.cpus))
        gpu = f" and {least.gpus:g} of a GPU" if least.gpus else ""
        self._display.say(f"no worker has {least.cpus} CPUs{gpu} to spare, which a group needs; waiting for one")

    def tick(self) -> None:
        now = time.monotonic()
        if now - self._shown < EVERY:
            return
        self._shown = now
        self._display.stand(lines(self._board))
        with suppress(KclError):  # a view that cannot be written costs no run
            write_json(self._folder.path / STANDING, self._board.to_dict() | {"time": time.time()})


def _progress(message: Message) -> Progress:
    step = message["step"]
    standings = tuple(Standing(*run) for run in message["runs"])
    own = None if step is None else Step(*step)
    return Progress(message["task"], message["tasks"], own, message["average_accuracy"], standings)


def lines(board: Board, most: int = 8) -> list[str]:
    """The board for a terminal: all runs, then the workers that are at work."""
    told = [f"{board.queued} queued, {board.running} running, {board.done} done"]
    told += [f"{board.failed} failed"] if board.failed else []
    if board.average_accuracy is not None:
        told.append(f"average accuracy {board.average_accuracy:.2f} %")
    left = board.seconds_left()
    told += [] if left is None else [f"about {duration(left)} left"]
    all_of_them = board.to_dict()["workers"]
    workers = [own for own in all_of_them if own["doing"]][:most]
    each = [
        f"  {own['worker']}: {own['runs']} runs, {own['runs_per_hour']:.1f} an hour, {own['doing']}" for own in workers
    ]
    return [", ".join(told), *each]
