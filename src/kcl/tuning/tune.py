"""Settings searched by a protocol, then the whole stream with the winner; what was done is told in `tuning.json`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from typing import Protocol as Shape

from kcl.core.files import write_json
from kcl.errors import KclError
from kcl.experiments.run_spec import RunSpec, key_of
from kcl.tuning.protocol import Protocol
from kcl.tuning.space import Space, points, published, same, size
from kcl.tuning.study import Study, Trial

JOURNAL, TRIALS, TOLD = "study.journal", "trials", "tuning.json"
LOCK = ".search.lock"
"""Held for a whole search; while runs are done, their folder has a lock of its own."""


class Finished(Shape):
    """Runs that were done."""

    @property
    def records(self) -> list[dict[str, Any]]: ...


Run = Callable[[Sequence[RunSpec], Path, bool, Mapping[str, Any]], Finished]
"""Does runs and keeps them in a folder: specs, folder, whether it may hold some already, notes for their results."""


class Search(NamedTuple):
    """What is asked for."""

    base: RunSpec
    space: Space
    protocol: Protocol
    trials: int
    at_once: int
    seed: int
    out: Path

    def about(self) -> dict[str, Any]:
        """What decides the search beside its space and its seed."""
        base = {name: value for name, value in self.base.fields().items() if name != "seed"}
        return {"runs": base, "protocol": self.protocol.to_dict(), "trials at once": self.at_once}

    def study(self) -> Study:
        """Begins with the settings as they are; where there are as many trials as points, goes through them all."""
        own = published(self.space, self.base.settings)
        first = [own] if own is not None else []
        if self.exhausts:
            first += [point for point in points(self.space) if point != own]
        return Study(self.out / JOURNAL, self.space, self.seed, self.about(), first)

    @property
    def exhausts(self) -> bool:
        """Whether every point is to be tried."""
        return self.trials >= size(self.space)

    def left(self, study: Study) -> int:
        """How many trials are still to be done; where every point is to be tried, those that were not, though fewer
        trials were asked for before and one point may have been drawn twice.
        """
        finished = study.finished
        if not self.exhausts:
            return max(0, self.trials - len(finished))
        return len({same(point) for point in points(self.space)} - {same(trial.settings) for trial in finished})


def search(asked: Search, run: Run, say: Callable[[str], None]) -> Trial:
    """Do the trials that are left, some at once; the best of all."""
    study = asked.study()
    note = {"protocol": asked.protocol.to_dict()}
    while left := asked.left(study):
        batch = study.ask(min(asked.at_once, left))
        specs = {trial.number: asked.protocol.specs(asked.base, trial.settings) for trial in batch}
        wanted = list({spec.key: spec for own in specs.values() for spec in own}.values())
        found = {_identity(record): record for record in run(wanted, asked.out / TRIALS, True, note).records}
        for trial in batch:
            records = [found.get(_identity(spec.fields())) for spec in specs[trial.number]]
            if any(record is None for record in records):
                raise KclError(
                    "runs of the search failed, and what is best cannot be told without them; try them again"
                )
            study.tell(trial, asked.protocol.value([record for record in records if record is not None]))
        best, done = study.best, len(study.finished)
        say(f"{done} of {done + asked.left(study)} trials, best {best.value:.2f} % with {show(best.settings)}")
    return study.best


def _identity(fields: Mapping[str, Any]) -> tuple[int, str]:
    """Of runs that differ in seed and settings only."""
    return fields["seed"], str(sorted(fields["settings"].items()))


def final(asked: Search, best: Trial, seeds: Sequence[int], run: Run) -> list[dict[str, Any]]:
    """The whole stream with the winner, tested on the test data: once for every seed, where any is asked for."""
    if not seeds:
        return []
    settings = asked.base.settings.replace(**best.settings)
    specs = [RunSpec.from_fields({**asked.base.fields(), "settings": settings.to_dict(), "seed": s}) for s in seeds]
    done = len(asked.study().finished)
    chosen = {"settings": best.settings, "trial": best.number, "of": done, "value": best.value}
    note = {"protocol": asked.protocol.to_dict() | {"search": [str(own) for own in asked.space], "chosen": chosen}}
    return run(specs, asked.out, True, note).records


def told(asked: Search, records: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What was searched, how it was chosen, and what the whole stream gave."""
    study = asked.study()
    return {
        "format": 1,
        **asked.about(),
        "search": [str(own) for own in asked.space],
        "seed": asked.seed,
        "trials": [trial._asdict() for trial in study.finished],
        "best": study.best._asdict(),
        "whole stream": [
            {"seed": record["seed"], "average_accuracy": record["average_accuracy"], "key": key_of(record)}
            for record in records
        ],
    }


def write(asked: Search, records: Sequence[Mapping[str, Any]]) -> Path:
    path = asked.out / TOLD
    write_json(path, told(asked, records))
    return path


def show(settings: Mapping[str, Any]) -> str:
    return " ".join(
        f"{name}={value:.4g}" if isinstance(value, float) else f"{name}={value}" for name, value in settings.items()
    )
