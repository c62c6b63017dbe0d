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

    What is None is left to the benchmark, or has no meaning for it; `Experiment` puts what the benchmark chose there.
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
    """To choose settings by: the share of the training samples that the run is tested on, in place of the test data,
    of which nothing is seen (`benchmarks.held_out`).
    """

    @property
    def label(self) -> str:
        kernel = f" {self.settings.kernel}" if self.method == "kcl" else ""
        return f"{self.method}{kernel} seed {self.seed}"

    def fields(self) -> dict[str, Any]:
        """As JSON has them; `held_out` is younger than files that are still read, and named only where it is given."""
        fields = dataclasses.asdict(self)
        return fields if self.held_out is not None else {k: v for k, v in fields.items() if k != "held_out"}

    @cached_property
    def key(self) -> str:
        """The same for two runs that compute the same thing."""
        return json.dumps(self.fields(), sort_keys=True)

    @cached_property
    def trained(self) -> RunSpec:
        """The run whose training this one shares: the same but for settings that act at test only."""
        settings = self.settings.as_trained()
        return self if settings is self.settings else dataclasses.replace(self, settings=settings)

    @classmethod
    def from_fields(cls, fields: Mapping[str, Any]) -> RunSpec:
        """The inverse of `fields`, also after they have been JSON."""
        ways = fields["ways"]
        own = {"ways": tuple(ways) if isinstance(ways, list) else ways, "settings": Settings(**fields["settings"])}
        return cls(**{**fields, **own})


def by_training(specs: Sequence[RunSpec]) -> list[list[RunSpec]]:
    """Runs that are trained once and tested each in its own way, in lists."""
    found: dict[RunSpec, list[RunSpec]] = {}
    for spec in specs:
        found.setdefault(spec.trained, []).append(spec)
    return list(found.values())


CHOICES = ("ways", "class_order", "image_size")
"""What a user may choose of some benchmarks."""


def given(spec: RunSpec, names: Iterable[str]) -> dict[str, Any]:
    """The fields of a run that are not left to the benchmark."""
    return {name: value for name in names if (value := getattr(spec, name)) is not None}


_DEFAULTS = Settings().to_dict()


def key_of(record: dict[str, Any]) -> str:
    """The key of the run that a line of results.jsonl records. Settings it lacks are younger than it: the defaults."""
    fields = {field.name: record.get(field.name) for field in dataclasses.fields(RunSpec)}
    if fields["held_out"] is None:
        del fields["held_out"]
    fields["settings"] = _DEFAULTS | record["settings"]
    return json.dumps(fields, sort_keys=True)
