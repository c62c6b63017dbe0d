"""Everything that decides what a run computes, the key by which two runs are the same, and groups of runs."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import Any, NamedTuple

from kcl.benchmarks.ways import Ways
from kcl.core.settings import Settings
from kcl.methods.recipes import select_settings, settings_record


@dataclass(frozen=True)
class RunSpec:
    """Everything that decides what a run computes.

    None leaves a choice to the benchmark, or does not apply to it; `admission.admit` fills in what it chose.
    """

    benchmark: str
    method: str
    seed: int
    settings: Settings
    tasks: int | None = None
    train_per_task: int | None = None
    ways: Ways | None = None
    class_order: str | None = None
    image_size: int | None = None
    data: str | None = None
    """The identity of the data, where different data go by the same name."""
    held_out: float | None = None
    """For choosing settings: the share of the training samples that the run is tested on, instead of the test data,
    which it never sees (`admission.with_held_out`).
    """

    @property
    def kernel(self) -> str | None:
        return self.settings.kernel_name

    @property
    def label(self) -> str:
        return " ".join(filter(None, (self.method, self.kernel, f"seed {self.seed}")))

    def fields(self) -> dict[str, Any]:
        """For JSON. `held_out` is left out when it is None: older files, which are still read, do not have it."""
        fields = dataclasses.asdict(self)
        return fields if self.held_out is not None else {k: v for k, v in fields.items() if k != "held_out"}

    @cached_property
    def key(self) -> str:
        """The same for two runs that compute the same thing."""
        return json.dumps(self.fields(), sort_keys=True)

    @cached_property
    def trained(self) -> RunSpec:
        """The run whose training this one shares: the same, except for settings that act at test only."""
        settings = self.settings.as_trained()
        return self if settings is self.settings else dataclasses.replace(self, settings=settings)

    @classmethod
    def from_fields(cls, fields: Mapping[str, Any]) -> RunSpec:
        """The inverse of `fields`, also from JSON and from a line of results.jsonl, however old."""
        ways = fields.get("ways")
        values = {name: fields[name] for name in _names() if name in fields}
        values["ways"] = tuple(ways) if isinstance(ways, list) else ways
        values["settings"] = select_settings(fields["method"], fields["settings"])
        return cls(**values)


def _names() -> list[str]:
    return [field.name for field in dataclasses.fields(RunSpec)]


def by_training(specs: Sequence[RunSpec]) -> list[list[RunSpec]]:
    """The runs in lists that share one training and differ only in how they are tested."""
    trainings: dict[RunSpec, list[RunSpec]] = {}
    for spec in specs:
        trainings.setdefault(spec.trained, []).append(spec)
    return list(trainings.values())


Training = Sequence[RunSpec]
"""Runs that share one training and differ only in how they are tested."""


class RunGroup(NamedTuple):
    """Trainings that are done together."""

    trainings: Sequence[Training]
    plain: bool = False
    """A single training that is stepped without vmap: on a CPU, or because its runs cannot be stacked."""

    @property
    def specs(self) -> list[RunSpec]:
        return list(chain.from_iterable(self.trainings))


CHOICES = ("ways", "class_order", "image_size")
"""Fields that the user can choose for some benchmarks."""


def chosen_fields(spec: RunSpec, names: Iterable[str]) -> dict[str, Any]:
    """Those of the named fields of a run that are not left to the benchmark."""
    return {name: value for name in names if (value := getattr(spec, name)) is not None}


# What files recorded


def with_current_settings(record: Mapping[str, Any]) -> dict[str, Any]:
    """A recorded run with the settings that this version would record (`recipes.settings_record`).

    Older files hold the settings of every method and lack newer ones. What is not a run is left unchanged.
    """
    method, settings = record.get("method"), record.get("settings")
    if not isinstance(method, str) or not isinstance(settings, dict):
        return dict(record)
    return {**record, "settings": settings_record(method, settings)}


def key_of(record: Mapping[str, Any]) -> str:
    """The key of the run that a line of results.jsonl records."""
    current = with_current_settings(record)
    fields = {name: current.get(name) for name in _names()}
    if fields["held_out"] is None:
        del fields["held_out"]
    return json.dumps(fields, sort_keys=True)
