"""Runs that differ only in their seed belong together: one group is one row, one curve, one matrix of the report."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from kcl.core.metrics import AccuracyMatrix
from kcl.errors import KclError
from kcl.report.summary import Summary, summarise

Record = dict[str, Any]
CHOICES = ("train_per_task", "ways", "class_order", "image_size", "data", "held_out")

# How the literature writes the methods; a name that is not here is shown as it stands.
_TITLES = {
    "kcl": "KCL",
    "naive-sgd": "naive SGD",
    "stable-sgd": "stable SGD",
    "ewc": "EWC",
    "a-gem": "A-GEM",
    "er-reservoir": "ER-Reservoir",
    "multi-task": "multi-task",
}


@dataclass(frozen=True)
class Group:
    """Runs of one method on one benchmark with the same settings, one for each seed, in the order of the seeds."""

    benchmark: str
    label: str
    tasks: int
    settings: dict[str, Any]
    runs: tuple[Record, ...]
    diverged: tuple[Record, ...]

    def summary(self, field: str) -> Summary | None:
        """Statistics of a field over the runs that did not diverge; None if any of them lacks it."""
        values = [run[field] for run in self.runs]
        return None if None in values else summarise(values)

    def matrices(self) -> npt.NDArray[np.float64]:
        """The accuracy matrices of the runs that did not diverge, (runs, tasks, tasks), NaN where not evaluated.

        So is what lies beyond the last task of a run that has fewer tasks than another, as with varied ways.
        """
        matrices = np.full((len(self.runs), self.tasks, self.tasks), np.nan)
        for matrix, run in zip(matrices, self.runs, strict=True):
            matrix[: run["tasks"], : run["tasks"]] = AccuracyMatrix.from_lists(run["accuracy_matrix"]).values
        return matrices


def group_runs(records: Sequence[Record]) -> list[Group]:
    """The groups, in the order in which they first appear, those of one benchmark together.

    A run repeated with the same settings and seed counts once: the last one, as a person who repeats a run expects.
    """
    if not records:
        raise KclError("there are no runs to report; make some with `kcl run`")
    families: dict[tuple[str, str, str | None], dict[str, dict[int, Record]]] = {}
    for record in records:
        family = families.setdefault((record["benchmark"], record["method"], record["kernel"]), {})
        family.setdefault(json.dumps(_settings(record), sort_keys=True), {})[record["seed"]] = record
    groups = []
    for (benchmark, method, kernel), family in families.items():
        members = [[runs[seed] for seed in sorted(runs)] for runs in family.values()]
        settings = [_settings(runs[0]) for runs in members]
        told = differing(settings)
        for runs, own in zip(members, settings, strict=True):
            groups.append(
                Group(
                    benchmark=benchmark,
                    label=", ".join([title(method, kernel), *(f"{name} {show(own.get(name))}" for name in told)]),
                    tasks=max(run["tasks"] for run in runs),
                    settings=own,
                    runs=tuple(run for run in runs if not run["diverged"]),
                    diverged=tuple(run for run in runs if run["diverged"]),
                )
            )
    benchmarks = list(dict.fromkeys(group.benchmark for group in groups))
    return sorted(groups, key=lambda group: benchmarks.index(group.benchmark))


def title(method: str, kernel: str | None) -> str:
    """A method as it is written in tables, with its kernel where it has one."""
    return _TITLES.get(method, method) + (f" ({kernel})" if kernel else "")


def differing(settings: Sequence[dict[str, Any]]) -> list[str]:
    """Names of the settings that are not the same everywhere, in their order; a missing one differs."""
    names = dict.fromkeys(name for own in settings for name in own)
    return [name for name in names if len({json.dumps(own.get(name), sort_keys=True) for own in settings}) > 1]


def show(value: Any) -> str:
    """A setting's value as one short printable text."""
    text = value if isinstance(value, str) and value.isprintable() else json.dumps(value)
    text = "–" if value is None else text
    return text if len(text) <= 60 else text[:59] + "…"


def _settings(record: Record) -> dict[str, Any]:
    """The settings without the seed, and with what makes other runs just as a setting does.

    Where the ways of a task are drawn from a range, the number of tasks follows from the seed and tells nothing apart.
    """
    varied = isinstance(record.get("ways"), list | tuple)
    tasks = {} if varied else {"tasks": record["tasks"]}
    choices = {name: record[name] for name in CHOICES if record.get(name) is not None}
    if varied:
        choices["ways"] = list(choices["ways"])  # a run not read from a file yet has a pair
    others = {name: value for name, value in record["settings"].items() if name not in ("seed", "tasks")}
    return {**tasks, **choices, **others}
