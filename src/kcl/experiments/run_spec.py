"""Everything that decides what a run computes, and the key by which two runs are known to be the same."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from kcl.benchmarks.ways import Ways
from kcl.core.settings import Settings


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
    """For choosing settings: the share of the training samples that the run is tested on instead of the test data
    (`benchmarks.held_out`).
    """

    @property
    def kernel(self) -> str | None:
        return self.settings.kernel if self.method == "kcl" else None

    @property
    def label(self) -> str:
        return " ".join([self.method, *([self.kernel] if self.kernel else []), f"seed {self.seed}"])

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
        """The inverse of `fields`, also after they have been JSON."""
        ways = fields["ways"]
        own = {"ways": tuple(ways) if isinstance(ways, list) else ways, "settings": Settings(**fields["settings"])}
        return cls(**{**fields, **own})


def by_training(specs: Sequence[RunSpec]) -> list[list[RunSpec]]:
    """The runs in lists that share one training and differ only in how they are tested."""
    trainings: dict[RunSpec, list[RunSpec]] = {}
    for spec in specs:
        trainings.setdefault(spec.trained, []).append(spec)
    return list(trainings.values())


CHOICES = ("ways", "class_order", "image_size")
"""Fields that the user can choose for some benchmarks."""


def chosen_fields(spec: RunSpec, names: Iterable[str]) -> dict[str, Any]:
    """Those of the named fields of a run that are not left to the benchmark."""
    return {name: value for name in names if (value := getattr(spec, name)) is not None}


_DEFAULTS = Settings().to_dict()


def key_of(record: dict[str, Any]) -> str:
    """The key of the run that a line of results.jsonl records. Settings it lacks are younger than it: the defaults."""
    fields = {field.name: record.get(field.name) for field in dataclasses.fields(RunSpec)}
    if fields["held_out"] is None:
        del fields["held_out"]
    fields["settings"] = _DEFAULTS | record["settings"]
    return json.dumps(fields, sort_keys=True)
