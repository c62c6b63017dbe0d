"""What is searched: ranges and choices of settings, as `--search` has them."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from kcl.core.settings import Settings, parse_setting
from kcl.errors import KclError


class Range(NamedTuple):
    """Numbers from low to high; `log`: as many between 1 and 10 as between 10 and 100."""

    name: str
    low: float
    high: float
    log: bool

    def suggest(self, trial: Any) -> float:
        ask = trial.suggest_int if isinstance(self.low, int) else trial.suggest_float
        return ask(self.name, self.low, self.high, log=self.log)

    def holds(self, value: Any) -> bool:
        return self.low <= value <= self.high

    def __str__(self) -> str:
        return f"{self.name}={self.low}..{self.high}" + (":log" if self.log else "")


class Choice(NamedTuple):
    """Some values, in no order."""

    name: str
    values: tuple[Any, ...]

    def suggest(self, trial: Any) -> Any:
        return trial.suggest_categorical(self.name, self.values)

    def holds(self, value: Any) -> bool:
        return value in self.values

    def __str__(self) -> str:
        return f"{self.name}={','.join(map(str, self.values))}"


Space = list[Range | Choice]


def parse(assignments: Sequence[str]) -> Space:
    """`lr=0.001..0.5:log`, `dropout=0..0.5`, `kernel=vrf,rbf`: what each setting accepts is held against it."""
    if not assignments:
        raise KclError("--search: name what is to be searched, such as --search lr=0.001..0.5:log kernel=vrf,rbf")
    space: Space = []
    for assignment in assignments:
        name, equals, text = assignment.partition("=")
        if not equals:
            raise KclError(f"--search {assignment!r}: expected NAME=LOW..HIGH, NAME=LOW..HIGH:log or NAME=A,B,C")
        if name in [dimension.name for dimension in space]:
            raise KclError(f"--search: {name} is given twice")
        space.append(_range(name, text) if ".." in text else _choice(name, text))
    return space


def _range(name: str, text: str) -> Range:
    span, colon, scale = text.partition(":")
    low_text, _, high_text = span.partition("..")
    low, high = parse_setting(name, low_text), parse_setting(name, high_text)
    if isinstance(low, str):
        raise KclError(f"--search {name}: a word has no range; give choices, such as {name}=A,B")
    if colon and scale != "log":
        raise KclError(f"--search {name}={text}: after the range only :log is known, not {scale[:20]!r}")
    if not low < high:
        raise KclError(f"--search {name}={text}: a range must go upwards")
    if colon and low <= 0:
        raise KclError(f"--search {name}={text}: on a logarithmic scale a range begins above 0")
    return Range(name, low, high, bool(colon))


def _choice(name: str, text: str) -> Choice:
    values = tuple(parse_setting(name, value) for value in text.split(","))
    if len(values) < 2 or len(set(values)) != len(values):
        raise KclError(f"--search {name}={text}: expected at least two values, each once, or a range LOW..HIGH")
    return Choice(name, values)


def published(space: Space, settings: Settings) -> dict[str, Any] | None:
    """The settings as they are, as a point of the space; None where they lie outside."""
    point = {dimension.name: getattr(settings, dimension.name) for dimension in space}
    return point if all(dimension.holds(point[dimension.name]) for dimension in space) else None


def size(space: Space) -> float:
    """How many points it has; infinite with a range."""
    return math.prod(len(own.values) if isinstance(own, Choice) else math.inf for own in space)


def points(space: Space) -> list[dict[str, Any]]:
    """All of a space of choices alone."""
    choices = [own for own in space if isinstance(own, Choice)]
    return [{own.name: value for own, value in zip(choices, point, strict=True)}
            for point in itertools.product(*(own.values for own in choices))]  # fmt: skip


def same(point: Mapping[str, Any]) -> frozenset[Any]:
    """What two points that are the same have in common, and no others."""
    return frozenset(point.items())


def check_names(space: Space, method: str) -> None:
    """Refuse what the method does not have."""
    known = {field.name for field in dataclasses.fields(Settings)}
    for dimension in space:
        if dimension.name == "kernel" and method != "kcl":
            raise KclError(f"--search kernel: {method} has no kernel; it goes with --method kcl")
        if dimension.name not in known:
            raise KclError(f"--search: unknown setting {dimension.name!r}")
