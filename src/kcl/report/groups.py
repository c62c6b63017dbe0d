"""Groups of runs that differ only in their seed: each is one row, one curve, one matrix of the report."""

from __future__ import annotations

import json
import textwrap
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from kcl.core.metrics import AccuracyMatrix
from kcl.errors import KclError
from kcl.report.summary import Summary, summarise

Record = dict[str, Any]
STREAM_CHOICES = ("train_per_task", "ways", "class_order", "image_size", "data", "held_out")
LONGEST_LABEL = 80
"""Characters of settings in a label."""

# Methods as the literature writes them; other names are shown unchanged.
_TITLES = {
    "kcl": "KCL",
    "naive-sgd": "naive SGD",
    "stable-sgd": "stable SGD",
    "ewc": "EWC",
    "a-gem": "A-GEM",
    "er-reservoir": "ER-Reservoir",
    "er-ace": "ER-ACE",
    "der++": "DER++",
    "multi-task": "multi-task",
}


@dataclass(frozen=True)
class SeedGroup:
    """Runs of one method on one benchmark with the same settings, in the order of their seeds."""

    benchmark: str
    method: str
    kernel: str | None
    label: str
    tasks: int
    settings: dict[str, Any]
    runs: tuple[Record, ...]
    diverged: tuple[Record, ...]

    @property
    def all_runs(self) -> tuple[Record, ...]:
        return self.runs + self.diverged

    def summary(self, field: str) -> Summary | None:
        """Statistics of a field over the runs that did not diverge; None if any of them lacks it."""
        values = [run.get(field) for run in self.runs]
        return None if None in values else summarise([value for value in values if value is not None])

    def matrices(self) -> npt.NDArray[np.float64]:
        """The accuracy matrices of the runs that did not diverge, (runs, tasks, tasks), NaN where not evaluated.

        With varied ways a run may have fewer tasks than another: beyond its last task its matrix is NaN too.
        """
        matrices = np.full((len(self.runs), self.tasks, self.tasks), np.nan)
        for matrix, run in zip(matrices, self.runs, strict=True):
            matrix[: run["tasks"], : run["tasks"]] = AccuracyMatrix.from_lists(run["accuracy_matrix"]).values
        return matrices

    @property
    def names_tasks(self) -> bool:
        """Whether the task of a sample was named when the runs were tested."""
        return self.settings.get("scenario", "task") == "task"

    def task_confusion(self) -> npt.NDArray[np.float64] | None:
        """The share of each task's test samples (row) that were taken for samples of each task (column), averaged over
        the runs; None where tasks were named, shared their classes, or differ between runs.
        """
        counts = [np.array(run.get("task_confusion") or [], dtype=np.float64) for run in self.runs]
        if not counts or any(each.shape != (self.tasks, self.tasks) for each in counts):
            return None
        shares: npt.NDArray[np.float64] = np.mean(
            [each / each.sum(1, keepdims=True).clip(1) for each in counts], axis=0
        )
        return shares

    @property
    def has_history(self) -> bool:
        """Whether tasks were tested as they were learned, and not only at the end, as in multi-task training."""
        return not np.isnan(self.matrices()[:, 0, 0]).any()


def group_runs(records: Sequence[Record]) -> list[SeedGroup]:
    """The groups, in the order in which they first appear, those of one benchmark together.

    Of a run repeated with the same settings and seed, the last one counts.
    """
    if not records:
        raise KclError("there are no runs to report; run some with `kcl run`")
    families: dict[tuple[str, str, str | None], dict[str, dict[int, Record]]] = {}
    for record in records:
        family = families.setdefault((record["benchmark"], record["method"], record["kernel"]), {})
        family.setdefault(json.dumps(_settings(record), sort_keys=True), {})[record["seed"]] = record
    groups = []
    for (benchmark, method, kernel), family in families.items():
        members = [[runs[seed] for seed in sorted(runs)] for runs in family.values()]
        settings = [_settings(runs[0]) for runs in members]
        labels = setting_labels([title(method, kernel)] * len(members), settings)
        groups += [
            SeedGroup(
                benchmark=benchmark,
                method=method,
                kernel=kernel,
                label=label,
                tasks=max(run["tasks"] for run in runs),
                settings=values,
                runs=tuple(run for run in runs if not run["diverged"]),
                diverged=tuple(run for run in runs if run["diverged"]),
            )
            for runs, label, values in zip(members, labels, settings, strict=True)
        ]
    benchmarks = list(dict.fromkeys(group.benchmark for group in groups))
    return sorted(groups, key=lambda group: benchmarks.index(group.benchmark))


def setting_labels(titles: Sequence[str], settings: Sequence[Mapping[str, Any]]) -> list[str]:
    """Each title, followed by the settings in which it differs from others of the same title.

    A long text is shortened; labels that would be the same are numbered.
    """
    labels: list[str] = []
    seen: Counter[str] = Counter()
    for name, values in zip(titles, settings, strict=True):
        names = differing([others for other, others in zip(titles, settings, strict=True) if other == name])
        text = ", ".join(f"{setting} {show(values.get(setting))}" for setting in names)
        label = f"{name}, {textwrap.shorten(text, LONGEST_LABEL, placeholder=' …')}" if text else name
        seen[label] += 1
        labels.append(label if seen[label] == 1 else f"{label} ({seen[label]})")
    return labels


def title(method: str, kernel: str | None) -> str:
    """A method as tables show it, with its kernel if it has one."""
    return _TITLES.get(method, method) + (f" ({kernel})" if kernel else "")


def differing(settings: Sequence[Mapping[str, Any]]) -> list[str]:
    """Names of the settings that are not the same everywhere, in their order; a missing one differs."""
    names = dict.fromkeys(name for values in settings for name in values)
    return [name for name in names if len({json.dumps(values.get(name), sort_keys=True) for values in settings}) > 1]


def show(value: Any) -> str:
    """A setting's value as one short printable text."""
    if isinstance(value, float):
        return f"{value:.6g}"
    text = value if isinstance(value, str) and value.isprintable() else json.dumps(value)
    text = "–" if value is None else text
    return text if len(text) <= 60 else text[:59] + "…"


def _settings(record: Record) -> dict[str, Any]:
    """The settings that tell runs apart, and the choices of the stream; without the seed.

    With varied ways the number of tasks follows from the seed, so it is left out.
    """
    choices = {name: record[name] for name in STREAM_CHOICES if record.get(name) is not None}
    varied = isinstance(record.get("ways"), list | tuple)
    if varied:
        choices["ways"] = list(choices["ways"])  # a run that was not read from a file has a tuple
    tasks = {} if varied else {"tasks": record["tasks"]}
    settings = {name: value for name, value in record["settings"].items() if name not in ("seed", "tasks")}
    return {**tasks, **choices, **settings}
