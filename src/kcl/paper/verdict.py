"""Whether a printed accuracy was reproduced: ours beside it, their difference in its own standard deviations."""

from __future__ import annotations

import math
from typing import NamedTuple

from kcl.paper.cell import Published
from kcl.report.summary import Summary

LIMIT = 2.0
"""Standard deviations within which a number counts as reproduced."""


class Verdict(NamedTuple):
    difference: float
    """Ours minus the paper's, in points."""
    deviations: float
    """The same in standard deviations √(s² + s²) of the difference between a run of ours and one of the paper's."""

    @property
    def reproduced(self) -> bool:
        return abs(self.deviations) <= LIMIT

    def __str__(self) -> str:
        if self.reproduced:
            return "reproduced"
        return "ours is higher" if self.difference > 0 else "ours is lower"


def judge(ours: Summary | None, paper: Published | None) -> Verdict | None:
    """None where one of the two is missing, or neither has a spread."""
    if ours is None or paper is None:
        return None
    spread = math.hypot(ours.deviation or 0.0, paper.deviation or 0.0)
    difference = ours.mean - paper.accuracy
    return Verdict(difference, difference / spread) if spread else None
