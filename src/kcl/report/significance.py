"""Whether the best mean is significantly better than the others: t tests over seeds, with a correction for many.

Two methods that share seeds saw the same permutations, classes and order, so their runs are compared in pairs.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence

from kcl.report.summary import student_p

LEVEL = 0.05
NOTE = (
    "The best mean is marked only where it is significantly better than every other: two-sided t tests, paired over "
    "shared seeds where there are at least two, otherwise Welch's; Holm's correction, level 5 %."
)

BySeed = Mapping[int, float]


def stands_out(best: BySeed, others: Sequence[BySeed]) -> bool:
    """Whether `best` differs from each of the others at the level, all tests taken together (Holm, 1979)."""
    chances = sorted(difference_p(best, other) for other in others)
    return bool(chances) and all(p * (len(chances) - rank) < LEVEL for rank, p in enumerate(chances))


def difference_p(one: BySeed, other: BySeed) -> float:
    """The probability of a difference of means this large by chance; 1 if there are too few seeds."""
    shared = sorted(one.keys() & other.keys())
    if len(shared) >= 2:
        gaps = [one[seed] - other[seed] for seed in shared]
        return _p(statistics.fmean(gaps), statistics.variance(gaps) / len(gaps), len(gaps) - 1)
    if min(len(one), len(other)) < 2:
        return 1.0
    errors = [statistics.variance(scores.values()) / len(scores) for scores in (one, other)]
    scale = sum(error**2 / (len(scores) - 1) for error, scores in zip(errors, (one, other), strict=True))
    # Welch and Satterthwaite's degrees of freedom, rounded down: slightly conservative, and exact.
    degrees = max(1, math.floor(sum(errors) ** 2 / scale)) if scale else len(one) + len(other) - 2
    return _p(statistics.fmean(one.values()) - statistics.fmean(other.values()), sum(errors), degrees)


def _p(gap: float, squared_error: float, degrees: int) -> float:
    if squared_error == 0:
        return 0.0 if gap else 1.0
    return student_p(gap / math.sqrt(squared_error), degrees)
