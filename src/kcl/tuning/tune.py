"""The search by a protocol, then the whole stream with the winner; `tuning.json` records what was done."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from kcl.core.files import write_json
from kcl.experiments.run_spec import RunSpec, key_of
from kcl.tuning.protocol import Protocol
from kcl.tuning.space import Space, around, point_of, points, same, size
from kcl.tuning.study import Study, Trial

JOURNAL, TRIALS, SUMMARY = "study.journal", "trials", "tuning.json"
LOCK = ".search.lock"
"""Held during a whole search; while runs are done, their folder has a lock of its own."""


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

    def dimensions(self) -> list[str]:
        return [str(dimension) for dimension in self.space]

    @cached_property
    def study(self) -> Study:
        """Starts with the base settings; with as many trials as points, it tries every point."""
        base = point_of(self.space, self.base.settings)
        first = [base] if base is not None else []
        first += [point for point in self.planned or [] if point != base]
        return Study(self.out / JOURNAL, self.space, self.seed, self.about(), first)

    @cached_property
    def planned(self) -> list[dict[str, Any]] | None:
        """The points to be tried, where they are known from the start."""
        if self.one_at_a_time:
            return around(self.space, self.base.settings)
        return points(self.space) if self.exhausts else None

    @property
    def exhausts(self) -> bool:
        """Whether every point is to be tried."""
        return self.trials >= size(self.space)

    def left(self) -> int:
        """The number of trials still to be done.

        If every point is to be tried, this is the number of untried points: an earlier, shorter search may have drawn
        a point twice.
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
        note = {"protocol": self.protocol.to_dict() | {"search": self.dimensions(), "chosen": chosen}}
        return execute(specs, self.out, note)

    def write(self, records: Sequence[Mapping[str, Any]]) -> Path:
        """Record what was searched, how it was chosen, and the results of the whole stream."""
        content = {
            "format": 1,
            **self.about(),
            "search": self.dimensions(),
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
