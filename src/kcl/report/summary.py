"""Statistics over seeds: mean, spread and confidence interval, and whether one mean is significantly the best.

Two methods that share seeds saw the same permutations, classes and order, so their runs are compared in pairs.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import NamedTuple

LEVEL = 0.05
SIGNIFICANCE = (
    "The best mean is marked only where it is significantly better than every other: two-sided t tests, paired over "
    "shared seeds where there are at least two, otherwise Welch's; Holm's correction, level 5 %."
)
BySeed = Mapping[int, float]


class Summary(NamedTuple):
    """Over `size` seeds: mean, sample standard deviation, and half the width of the 95 % confidence interval.

    The last two are None for a single seed, which has no spread.
    """

    size: int
    mean: float
    deviation: float | None
    half_width: float | None


def summarise(values: Sequence[float]) -> Summary | None:
    """mean ± t s/√n with Student's t, which takes the seeds as independent and roughly normal; None for no values."""
    size = len(values)
    if size == 0:
        return None
    mean = statistics.fmean(values)
    if size == 1:
        return Summary(1, mean, None, None)
    deviation = statistics.stdev(values)
    return Summary(size, mean, deviation, student_t(size - 1) * deviation / math.sqrt(size))


def stands_out(best: BySeed, others: Sequence[BySeed]) -> bool:
    """Whether `best` differs from each of the others at the level, all tests taken together (Holm, 1979)."""
    chances = sorted(difference_p(best, other) for other in others)
    return bool(chances) and all(p * (len(chances) - rank) < LEVEL for rank, p in enumerate(chances))


def difference_p(one: BySeed, other: BySeed) -> float:
    """The probability of a difference of means this large by chance; 1 if there are too few seeds."""
    shared = sorted(one.keys() & other.keys())
    if len(shared) >= 2:
        gaps = [one[seed] - other[seed] for seed in shared]
        return _p_of(statistics.fmean(gaps), statistics.variance(gaps) / len(gaps), len(gaps) - 1)
    ours, theirs = summarise([*one.values()]), summarise([*other.values()])
    if ours is None or theirs is None or min(ours.size, theirs.size) < 2:
        return 1.0
    return welch_p(ours, theirs)


def welch_p(one: Summary, other: Summary, least: float = 0.0) -> float:
    """The probability that means differ this much by chance, by Welch's test. A summary without a spread is taken for
    exact. `least`: what the means may differ by, for other reasons.
    """
    gap = max(abs(one.mean - other.mean) - least, 0.0)
    errors = [((each.deviation or 0.0) ** 2 / each.size, max(each.size - 1, 1)) for each in (one, other)]
    squared_error = sum(error for error, _ in errors)
    scale = sum(error**2 / degrees for error, degrees in errors)
    # Welch and Satterthwaite's degrees of freedom, rounded down: slightly conservative, and exact.
    degrees = max(1, math.floor(squared_error**2 / scale)) if scale else one.size + other.size - 2
    return _p_of(gap, squared_error, degrees)


def _p_of(gap: float, squared_error: float, degrees: int) -> float:
    if squared_error == 0:
        return 0.0 if gap else 1.0
    return student_p(gap / math.sqrt(squared_error), degrees)


def student_t(degrees: int, confidence: float = 0.95) -> float:
    """The t that |T| exceeds with probability 1 − confidence, for T with `degrees` degrees of freedom."""
    low, high = 0.0, math.pi / 2
    while low < (middle := (low + high) / 2) < high:
        low, high = (middle, high) if _probability_within(middle, degrees) < confidence else (low, middle)
    return math.sqrt(degrees) * math.tan(low)


def student_p(t: float, degrees: int) -> float:
    """The probability of |T| > |t|, for T with `degrees` degrees of freedom."""
    return max(0.0, 1 - _probability_within(math.atan(abs(t) / math.sqrt(degrees)), degrees))


def _probability_within(angle: float, degrees: int) -> float:
    """P(|T| < √ν tan θ), exact for whole ν: Abramowitz and Stegun, 26.7.3 (odd ν) and 26.7.4 (even ν)."""
    odd = degrees % 2
    term, total = math.cos(angle) ** odd, 0.0
    for power in range(odd, degrees - 1, 2):
        total += term
        term *= math.cos(angle) ** 2 * (power + 1) / (power + 2)
    return 2 / math.pi * (angle + math.sin(angle) * total) if odd else math.sin(angle) * total
