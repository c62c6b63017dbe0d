"""Queries unlike all that was learned: how well a query is known, a threshold from a wanted error rate, and drift.

The sums do not say how the scores of new queries are distributed, and the scores of learned samples are too good. So
the threshold is taken from queries that are handed in, are known to be in scope and were not learned. Labels are not
needed.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

import numpy as np
import torch
from torch import Tensor

from kcl.core.settings import nearest
from kcl.core.shapes import Bool, Float
from kcl.errors import KclError
from kcl.models.inference import residual
from kcl.models.streaming_ridge import Solution

SCORES: dict[str, Callable[[Solution, Tensor, Tensor], Tensor]] = {
    "residual": lambda _, responses, __: residual(responses),
    "response": lambda _, responses, __: responses.amax(-1),
    "mahalanobis": lambda solution, responses, variance: -solution.distances(responses, variance).amin(-1),
    "variance": lambda _, __, variance: -variance,
}
"""How well a query is known, higher is better: by how the responses of the ridge regression fit a class, by the best
response, by the distance to the nearest class mean, or by the variance. `docs/streaming.md` has how good they are.
"""
DEFAULT_SCORE, DEFAULT_RATE = "residual", 0.05


def checked_score(name: str) -> str:
    if name not in SCORES:
        raise KclError(f"unknown score {name!r}; {nearest(name, list(SCORES))}")
    return name


@dataclass(frozen=True)
class KnownScores:
    """The scores of queries that are known to be in scope, and what follows from them for others.

    Of n + 1 known queries each is equally likely to have the k-th lowest score. So a query is called unknown if its
    score is lower than the k-th lowest of the n, k = ⌊error_rate · (n + 1)⌋: for a known query this happens with
    probability k / (n + 1), whatever the distribution of the scores.
    """

    score: str
    error_rate: float
    scores: Float[Tensor, " n"]
    """Ascending."""
    stale: bool = False
    """Whether the model has learned more since."""

    @classmethod
    def of(cls, score: str, error_rate: float, scores: Float[Tensor, " n"]) -> KnownScores:
        if not 0.0 < error_rate < 1.0:
            raise KclError(f"the error rate must lie between 0 and 1, not {error_rate}")
        if not bool(torch.isfinite(scores).all()):
            raise KclError("some known queries are so far from everything learned that their scores are not finite")
        known = cls(checked_score(score), float(error_rate), scores.double().sort().values)
        if known._place < 0:
            least = math.ceil(1.0 / error_rate - 1e-9) - 1
            raise KclError(f"an error rate of {error_rate:g} needs {least} known queries or more, not {len(scores)}")
        return known

    @property
    def _place(self) -> int:
        """k − 1."""
        return math.floor(self.error_rate * (len(self.scores) + 1) + 1e-9) - 1

    @property
    def threshold(self) -> float:
        return float(self.scores[self._place])

    def accepts(self, scores: Float[Tensor, " n"]) -> Bool[Tensor, " n"]:
        return scores >= self.scores[self._place]  # false where it is not a number

    def share_below(self, scores: Float[Tensor, " n"]) -> Float[Tensor, " n"]:
        """The share of known queries with a lower score; those with the same score count half."""
        scores = scores.double().nan_to_num(nan=-math.inf, posinf=math.inf, neginf=-math.inf)
        lower, upper = (torch.searchsorted(self.scores, scores, right=right) for right in (False, True))
        return (lower + upper).double() / (2.0 * len(self.scores))


class Drift:
    """Whether answered queries are still like the known ones.

    Of every `window` answers the mean of `Prediction.known` is compared with its expectation. It is the statistic of
    Mann and Whitney: with n known queries and windows of m it has mean 1/2 and variance (m + n + 1) / (12mn) if the
    queries come from where the known ones came from, whatever the distribution of the scores. `update` returns True
    where a window deviates by more than chance does in `false_alarms` of all windows.
    """

    def __init__(self, known_queries: int, window: int = 100, false_alarms: float = 1e-3) -> None:
        if not 0.0 < false_alarms < 1.0:
            raise KclError(f"the rate of false alarms must lie between 0 and 1, not {false_alarms}")
        if window < 1 or known_queries < 1:
            raise KclError("drift needs known queries, and windows of at least one answer")
        self.window = window
        self.limit = NormalDist().inv_cdf(1.0 - false_alarms / 2.0)
        """The largest deviation that is taken for chance."""
        self.deviations: list[float] = []
        """Of each complete window, in standard deviations; negative where queries are less known than expected."""
        self._spread = math.sqrt((window + known_queries + 1) / (12.0 * window * known_queries))
        self._sum, self._count = 0.0, 0

    @property
    def mean(self) -> float:
        """The running mean of the window that has begun; expected is 1/2."""
        return self._sum / self._count if self._count else math.nan

    def update(self, known: Any) -> bool:
        """Go on with `Prediction.known` of more answers."""
        alarm = False
        for value in np.asarray(known, float).ravel().tolist():
            if not 0.0 <= value <= 1.0:
                raise KclError("drift needs the answers of a model after reject_unknown")
            self._sum, self._count = self._sum + value, self._count + 1
            if self._count == self.window:
                self.deviations.append((self.mean - 0.5) / self._spread)
                self._sum, self._count = 0.0, 0
                alarm |= abs(self.deviations[-1]) > self.limit
        return alarm
