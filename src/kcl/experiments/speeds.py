"""Speeds of five runs together on one H200 (`kcl bench`, benches/results), to estimate how long runs take."""

from __future__ import annotations

from typing import NamedTuple

TOGETHER, BATCH = 5, 10
"""Runs trained together, and batch size, in these measurements."""


class Speed(NamedTuple):
    kcl: float
    """Milliseconds per step of KCL with the paper's settings, compiled where runs are long (the MLP)."""
    others: float
    """Milliseconds per bare SGD step, used for all other methods."""
    images: int
    """Images that pass through the backbone in a step of KCL; in a bare SGD step it is one batch."""
    gigabytes: float
    """GPU memory of KCL."""
    set_up: float
    """Seconds by which the first task of KCL took longer than the next: choosing algorithms, compiling, capturing
    graphs.
    """

    def step(self, images: float) -> float:
        """Milliseconds per step in which this many images pass through the backbone (rotation labels, another coreset,
        replayed samples): linear interpolation between the two measured counts.
        """
        return self.others + (self.kcl - self.others) * (images - BATCH) / (self.images - BATCH)

    def memory(self, images: float) -> float:
        """Gigabytes for such steps: scaled from the measurement, never less than it."""
        return self.gigabytes * max(1.0, images / self.images)


SPEEDS = {
    "mlp": Speed(0.417, 0.212, 210, 1.7, 10.8),
    "cifar-resnet": Speed(3.687, 1.267, 110, 2.1, 5.8),
    "miniimagenet-resnet": Speed(5.872, 1.704, 160, 4.7, 2.5),
}
"""By backbone."""


def speed_of(backbone: str) -> Speed:
    """A backbone that was not measured counts as the MLP in time and as the largest one in memory."""
    largest = max(speed.gigabytes for speed in SPEEDS.values())
    return SPEEDS.get(backbone, SPEEDS["mlp"]._replace(gigabytes=largest))
