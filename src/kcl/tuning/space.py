"""What is searched: ranges and choices of settings, as `--search` takes them."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from kcl.core.settings import Settings
from kcl.errors import KclError
from kcl.methods.recipes import check_setting, find_method


class Range(NamedTuple):
    """Numbers from low to high; `log`: as many between 1 and 10 as between 10 and 100."""

    name: str
    low: float
    high: float
    log: bool

    def suggest(self, trial: Any) -> float:
        suggest = trial.suggest_int if isinstance(self.low, int) else trial.suggest_float
        return suggest(self.name, self.low, self.high, log=self.log)

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


def parse(assignments: Sequence[str], method: str) -> Space:
    """`lr=0.001..0.5:log`, `dropout=0..0.5`, `kernel=vrf,rbf`: of settings that the method has, in their ranges."""
    if not assignments:
        raise KclError("--search: name what is to be searched, such as --search lr=0.001..0.5:log kernel=vrf,rbf")
    settings_type = find_method(method).settings_type
    space: Space = []
    for assignment in assignments:
        name, equals, text = assignment.partition("=")
        if not equals:
            raise KclError(f"--search {assignment!r}: expected NAME=LOW..HIGH, NAME=LOW..HIGH:log or NAME=A,B,C")
        if name in [dimension.name for dimension in space]:
            raise KclError(f"--search: {name} is given twice")
        check_setting(method, name)
        space.append((_range if ".." in text else _choice)(settings_type, name, text))
    return space


def _range(settings_type: type[Settings], name: str, text: str) -> Range:
    span, colon, scale = text.partition(":")
    low, high = (settings_type.parse(name, end) for end in span.split("..", 1))
    if isinstance(low, str):
        raise KclError(f"--search {name}: a word has no range; give choices, such as {name}=A,B")
    if colon and scale != "log":
        raise KclError(f"--search {name}={text}: only :log may follow a range, not {scale[:20]!r}")
    if not low < high:
        raise KclError(f"--search {name}={text}: a range must go upwards")
    if colon and low <= 0:
        raise KclError(f"--search {name}={text}: a range on a logarithmic scale begins above 0")
    return Range(name, low, high, bool(colon))


def _choice(settings_type: type[Settings], name: str, text: str) -> Choice:
    values = tuple(settings_type.parse(name, value) for value in text.split(","))
    if len(values) < 2 or len(set(values)) != len(values):
        raise KclError(f"--search {name}={text}: expected at least two values, each once, or a range LOW..HIGH")
    return Choice(name, values)


def point_of(space: Space, settings: Settings) -> dict[str, Any] | None:
    """The settings as a point of the space; None where they lie outside."""
    point = {dimension.name: getattr(settings, dimension.name) for dimension in space}
    return point if all(dimension.holds(point[dimension.name]) for dimension in space) else None


def size(space: Space) -> float:
    """The number of points; infinite with a range."""
    return math.prod(len(dimension.values) if isinstance(dimension, Choice) else math.inf for dimension in space)


def points(space: Space) -> list[dict[str, Any]]:
    """All points of a space of choices alone."""
    choices = [dimension for dimension in space if isinstance(dimension, Choice)]
    names = [choice.name for choice in choices]
    return [dict(zip(names, point, strict=True)) for point in itertools.product(*(c.values for c in choices))]


def around(space: Space, settings: Settings) -> list[dict[str, Any]]:
    """The settings as a point of a space of choices alone, and the points that differ from it in one setting."""
    choices = [dimension for dimension in space if isinstance(dimension, Choice)]
    point = point_of(space, settings)
    if point is None or len(choices) < len(space):
        raise KclError("--one-at-a-time: give every setting of --search some values, with the present one among them")
    others = ({**point, each.name: value} for each in choices for value in each.values if value != point[each.name])
    return [point, *others]


def same(point: Mapping[str, Any]) -> frozenset[Any]:
    """Equal for equal points only."""
    return frozenset(point.items())
