"""A search by Optuna under a protocol, then the whole stream with the winner; `tuning.json` records what was done.

Optuna proposes some trials at a time, is told their values, and is kept in a journal file. The next proposals depend
only on the values so far and on the search's seed, not on where trials run or which ends first: values are told in the
order of the trials, and every draw has a seed of its own. So a search that was interrupted continues as if it had not
been.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from kcl.core.files import write_json
from kcl.core.opening import regular
from kcl.core.packages import load_package
from kcl.core.randomness import derive
from kcl.errors import KclError
from kcl.experiments.resuming import changes
from kcl.experiments.run_spec import RunSpec, key_of, with_current_settings
from kcl.report.figures import side_by_side
from kcl.tuning.protocol import Protocol
from kcl.tuning.space import Choice, Range, Space, around, point_of, points, same, size

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

JOURNAL, TRIALS, SUMMARY = "study.journal", "trials", "tuning.json"
LOCK = ".search.lock"
"""Held during a whole search; while runs are done, their folder has a lock of its own."""
RANDOM = 10
"""Trials drawn at random before the search learns from them."""


class Trial(NamedTuple):
    """A point of the space, and its value once it is known."""

    number: int
    settings: dict[str, Any]
    value: float | None = None


class Study:
    """A search in a space, which starts with some points. `about` is what else decides it: a journal must agree."""

    def __init__(
        self, path: Path, space: Space, seed: int, about: Mapping[str, Any], first: Sequence[dict[str, Any]] = ()
    ) -> None:
        self._optuna = load_package("optuna", "tune", "kcl tune needs Optuna")
        self._optuna.logging.set_verbosity(self._optuna.logging.ERROR)
        self._space, self._seed = space, seed
        path.parent.mkdir(parents=True, exist_ok=True)
        journal = self._optuna.storages.journal
        try:
            _repair(path)
            storage = self._optuna.storages.JournalStorage(journal.JournalFileBackend(str(path), lock_obj=_NoLock()))
            self._study = self._optuna.create_study(
                storage=storage, study_name="kcl", direction="maximize", load_if_exists=True
            )
        except (OSError, ValueError, KeyError) as error:
            raise KclError(f"{path} cannot be used as the journal of a search: {error}") from None
        request = json.dumps({**about, "search": list(map(str, space)), "seed": seed}, sort_keys=True)
        before = self._study.user_attrs.get("asked")
        if before is None:
            self._study.set_user_attr("asked", request)
        elif difference := _difference(before, request):
            raise KclError(f"{path} holds another search: {difference}; choose another --out")
        trials = self._study.get_trials(deepcopy=False)
        queued = {same(trial.system_attrs.get("fixed_params", trial.params)) for trial in trials}
        for point in first:
            if same(point) not in queued:
                self._study.enqueue_trial(point)

    def ask(self, count: int) -> list[Trial]:
        """So many trials without a value, first those that were proposed before."""
        running = self._study.get_trials(states=[self._optuna.trial.TrialState.RUNNING])
        trials = [self._optuna.trial.Trial(self._study, trial._trial_id) for trial in running]
        trials += [self._study.ask() for _ in range(count - len(trials))]
        return [Trial(trial.number, self._suggest(trial)) for trial in trials[:count]]

    def _suggest(self, trial: Any) -> dict[str, Any]:
        """The point of a trial; values suggested before are not drawn again."""
        point = {}
        for place, dimension in enumerate(self._space):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # constant_liar is marked as experimental
                self._study.sampler = self._optuna.samplers.TPESampler(
                    seed=derive(self._seed, "trial", trial.number, place) % 2**32,
                    n_startup_trials=RANDOM,
                    constant_liar=True,
                )
                point[dimension.name] = dimension.suggest(trial)
        return point

    def tell(self, trial: Trial, value: float) -> None:
        self._study.tell(trial.number, value)

    @property
    def finished(self) -> list[Trial]:
        complete = self._study.get_trials(states=[self._optuna.trial.TrialState.COMPLETE])
        return [Trial(trial.number, dict(trial.params), trial.value) for trial in complete]

    @property
    def best(self) -> Trial:
        """The trial with the highest value; the first of equal ones."""
        return max(self.finished, key=lambda trial: (trial.value or 0.0, -trial.number))


class _NoLock:
    """In place of Optuna's lock of the journal, which outlives a process that is killed and is then waited for: the
    command holds a lock on the whole search.
    """

    def acquire(self) -> bool:
        return True

    def release(self) -> None:
        pass


def _repair(journal: Path) -> None:
    """Cut off an incomplete last line, left by a full disk or a power cut: lines written after it would be lost."""
    if journal.exists():
        with open(journal, "r+b", opener=regular) as file:
            content = file.read()
            if content.startswith(b"{"):  # other files are left as they are, and refused
                file.truncate(content.rfind(b"\n") + 1)


def _difference(old: str, new: str) -> str:
    """In which parts two searches differ; empty where they are the same, whichever version wrote them."""
    before, now = json.loads(old), json.loads(new)
    if isinstance(before.get("runs"), dict):
        before["runs"] = with_current_settings(before["runs"])
    return changes(before, now)


ExecuteRuns = Callable[[Sequence[RunSpec], Path, Mapping[str, Any]], list[dict[str, Any]]]
"""Does runs that are not done yet and keeps them in a folder: specs, folder, notes for their results; all records."""


@dataclass(frozen=True)
class Search:
    """What to search, and how."""

    base: RunSpec
    space: Space
    protocol: Protocol
    trials: int
    at_once: int
    seed: int
    out: Path
    one_at_a_time: bool = False
    """Whether only the base settings are tried, and those that differ from them in one setting."""

    def about(self) -> dict[str, Any]:
        """What decides the search besides its space and its seed."""
        base = {name: value for name, value in self.base.fields().items() if name != "seed"}
        about = {"runs": base, "protocol": self.protocol.to_dict(), "trials at once": self.at_once}
        return about | ({"one at a time": True} if self.one_at_a_time else {})

    @cached_property
    def study(self) -> Study:
        """Starts with the base settings."""
        base = point_of(self.space, self.base.settings)
        first = [base] if base is not None else []
        first += [point for point in self.planned or [] if point != base]
        return Study(self.out / JOURNAL, self.space, self.seed, self.about(), first)

    @cached_property
    def planned(self) -> list[dict[str, Any]] | None:
        """The points to be tried, where they are known from the start: with as many trials as points, all of them."""
        if self.one_at_a_time:
            return around(self.space, self.base.settings)
        return points(self.space) if self.trials >= size(self.space) else None

    def left(self) -> int:
        """The number of trials still to be done; of planned points those not tried, as an earlier, shorter search may
        have drawn a point twice.
        """
        finished = self.study.finished
        if self.planned is None:
            return max(0, self.trials - len(finished))
        return len({same(point) for point in self.planned} - {same(trial.settings) for trial in finished})

    def run(self, execute: ExecuteRuns, say: Callable[[str], None]) -> Trial:
        """Do the trials that are left, several at once; the best of all."""
        note = {"protocol": self.protocol.to_dict()}
        while left := self.left():
            # After a kill in the midst of a batch, the rest of it alone: later points are to know all of its values.
            begun = len(self.study.finished) % self.at_once
            batch = self.study.ask(min(self.at_once - begun, left))
            specs = {trial.number: self.protocol.specs(self.base, trial.settings) for trial in batch}
            unique = list({spec.key: spec for group in specs.values() for spec in group}.values())
            by_identity = {_identity(record): record for record in execute(unique, self.out / TRIALS, note)}
            for trial in batch:
                records = [by_identity[_identity(spec.fields())] for spec in specs[trial.number]]
                self.study.tell(trial, self.protocol.value(records))
            best, done = self.study.best, len(self.study.finished)
            say(f"{done} of {done + self.left()} trials, best {best.value:.2f} % with {show_settings(best.settings)}")
        return self.study.best

    def final(self, best: Trial, seeds: Sequence[int], execute: ExecuteRuns) -> list[dict[str, Any]]:
        """The whole stream with the winner, tested on the test data, once for every seed."""
        if not seeds:
            return []
        settings = self.base.settings.replace(**best.settings)
        specs = [replace(self.base, settings=settings, seed=seed) for seed in seeds]
        done = len(self.study.finished)
        chosen = {"settings": best.settings, "trial": best.number, "of": done, "value": best.value}
        note = {"protocol": self.protocol.to_dict() | {"search": list(map(str, self.space)), "chosen": chosen}}
        return execute(specs, self.out, note)

    def write(self, records: Sequence[Mapping[str, Any]]) -> Path:
        """Record what was searched, how it was chosen, and the results of the whole stream."""
        content = {
            "format": 1,
            **self.about(),
            "search": list(map(str, self.space)),
            "seed": self.seed,
            "trials": [trial._asdict() for trial in self.study.finished],
            "best": self.study.best._asdict(),
            "whole stream": [
                {"seed": record["seed"], "average_accuracy": record["average_accuracy"], "key": key_of(record)}
                for record in records
            ],
        }
        write_json(self.out / SUMMARY, content)
        return self.out / SUMMARY


def _identity(fields: Mapping[str, Any]) -> tuple[int, str]:
    """Identifies runs that differ only in seed and settings."""
    return fields["seed"], str(sorted(fields["settings"].items()))


def show_settings(settings: Mapping[str, Any]) -> str:
    return " ".join(
        f"{name}={value:.4g}" if isinstance(value, float) else f"{name}={value}" for name, value in settings.items()
    )


# Plots


def draw(space: Space, trials: Sequence[Trial]) -> Figure:
    """One panel for the progress of the search, one for each setting; the best trial is marked."""
    settings = [(dimension.name, partial(_setting, dimension=dimension, trials=trials)) for dimension in space]
    return side_by_side([("progress", partial(_progress, trials=trials)), *settings], width=3.6, columns=3)


def _progress(axes: Axes, trials: Sequence[Trial]) -> None:
    numbers, values = [trial.number for trial in trials], [trial.value or 0.0 for trial in trials]
    axes.plot(numbers, values, "o", alpha=0.6, label="trial")
    axes.step(numbers, list(accumulate(values, max)), where="post", label="best so far")
    axes.set(xlabel="trial", ylabel="accuracy % on samples held out")


def _setting(axes: Axes, dimension: Range | Choice, trials: Sequence[Trial]) -> None:
    from matplotlib.ticker import NullFormatter

    points, values = [trial.settings[dimension.name] for trial in trials], [trial.value or 0.0 for trial in trials]
    shown = points if isinstance(dimension, Range) else list(map(str, points))
    best = values.index(max(values))
    axes.scatter(shown, values, c=[trial.number for trial in trials], s=18)
    axes.plot([shown[best]], [values[best]], "*", color="#d55e00", markersize=12)
    if isinstance(dimension, Range):
        axes.set_xlim(dimension.low, dimension.high)
        axes.set_xscale("log" if dimension.log else "linear")
        axes.xaxis.set_minor_formatter(NullFormatter())
