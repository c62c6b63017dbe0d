"""Classes per task of a split benchmark: a number, a range, or a range that divides all classes among n tasks."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from kcl.errors import KclError

if TYPE_CHECKING:
    import numpy as np

Ways = int | tuple[int, int] | tuple[int, int, int]
DEFAULT_WAYS = 5
CLASS_ORDERS = {
    "fixed": "the dataset's own order, the same for every seed",
    "shuffled": "an order drawn from the seed",
}


def parse_ways(text: str) -> Ways:
    """'5', '3-15' for a range, or '3-15/20' to divide all classes among 20 tasks."""
    match = re.fullmatch(r"\s*(\d+)\s*(?:-\s*(\d+)\s*(?:/\s*(\d+)\s*)?)?", text)
    if match is None or len(text) > 20:
        raise KclError(
            f"--ways {text[:40]!r}: expected a number of classes such as 5, a range such as 3-15, or a range and a "
            "number of tasks such as 3-15/20"
        )
    low, high, tasks = (int(number or 0) for number in match.groups())
    ways: Ways = (low, high, tasks) if match[3] else (low, high) if match[2] else low
    _check_range(low, high if match[2] else low)
    return ways


def _check_range(low: int, high: int) -> None:
    if low < 2:
        raise KclError(f"ways must be at least 2, for a task needs classes to tell apart, not {low}")
    if high < low:
        raise KclError(f"ways: a range goes from the smaller number to the larger, such as {high}-{low}")


def show_ways(ways: Ways) -> str:
    """As on the command line."""
    if isinstance(ways, int):
        return str(ways)
    return f"{ways[0]}-{ways[1]}" + "".join(f"/{tasks}" for tasks in ways[2:])


def check_ways(ways: Ways, count: int, name: str) -> Ways:
    """The ways in canonical form; KclError if `count` classes do not allow them."""
    parts = (ways, ways) if isinstance(ways, int) else ways
    if not isinstance(parts, (tuple, list)) or len(parts) not in (2, 3) or not all(isinstance(n, int) for n in parts):
        raise KclError(
            f"ways must be a whole number such as 5, a pair such as (3, 15), or (3, 15, 20) for 20 tasks, not {ways!r}"
        )
    low, high = parts[:2]
    _check_range(low, high)
    if high > count:
        raise KclError(f"ways must be at most {count}, the classes of {name}, not {high}")
    if len(parts) == 3 and not low * parts[2] <= count <= high * parts[2]:
        raise KclError(f"{parts[2]} tasks of {low} to {high} classes cannot divide the {count} classes of {name}")
    if len(parts) == 3:
        return low, high, parts[2]
    return low if low == high else (low, high)


def draw_ways(ways: tuple[int, ...], count: int, random: np.random.Generator) -> list[int]:
    """The number of classes of every task.

    A pair (low, high): each is drawn uniformly from low to high, or to the number left, until fewer than low are left.
    With a number of tasks, all classes are divided among them, every division being equally likely.
    """
    low, high = ways[:2]
    drawn: list[int] = []
    if len(ways) == 2:
        while (left := count - sum(drawn)) >= low:
            drawn.append(int(random.integers(low, min(high, left), endpoint=True)))
        return drawn
    sizes = range(low, high + 1)
    divisions = [[int(n == 0) for n in range(count + 1)]]  # divisions[t][n]: the number of ways to give n to t tasks
    for _ in range(ways[2]):
        divisions.append([sum(divisions[-1][n - size] for size in sizes if size <= n) for n in range(count + 1)])
    for later in reversed(range(ways[2])):
        left = count - sum(drawn)
        numbers = [divisions[later][left - size] if size <= left else 0 for size in sizes]
        chances = [float(number / sum(numbers)) if number else 0.0 for number in numbers]
        total = sum(chances)
        drawn.append(int(random.choice(list(sizes), p=[chance / total for chance in chances])))
    return drawn
