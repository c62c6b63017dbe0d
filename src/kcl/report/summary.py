"""Mean, spread and confidence interval of one number over seeds."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import NamedTuple


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
