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

    def training(self, updates: int, images: float, trainings: int) -> float:
        """Seconds of so many updates, in each of which this many images pass, of several trainings."""
        return updates * self.step(images) / 1e3 * -(-trainings // TOGETHER)

    def memory(self, images: float) -> float:
        """Gigabytes for such steps: scaled from the measurement, never less than it."""
        return self.gigabytes * max(1.0, images / self.images)


SPEEDS = {
    "mlp": Speed(0.418, 0.206, 210, 1.6, 10.2),
    "cifar-resnet": Speed(3.743, 1.302, 110, 1.6, 1.1),
    "miniimagenet-resnet": Speed(5.882, 1.7, 160, 3.9, 2.6),
}
"""By backbone."""


def speed_of(backbone: str) -> Speed:
    """A backbone that was not measured counts as the MLP in time and as the largest one in memory."""
    largest = max(speed.gigabytes for speed in SPEEDS.values())
    return SPEEDS.get(backbone, SPEEDS["mlp"]._replace(gigabytes=largest))
