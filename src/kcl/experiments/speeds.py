"""What `kcl bench` measured of five runs together on one H200 (benches/results): to tell about how long runs take."""

from __future__ import annotations

from typing import NamedTuple

TOGETHER, BATCH = 5, 10
"""Runs trained together, and samples of a batch, in these measurements."""


class Speed(NamedTuple):
    kcl: float
    """Milliseconds of a step of KCL with the paper's settings, compiled where runs are long (the MLP)."""
    others: float
    """Of a bare SGD step, for which the other methods are taken."""
    images: int
    """That pass the backbone in the step of KCL; in the bare SGD step a batch does."""
    gigabytes: float
    """Of GPU memory, for KCL."""
    set_up: float
    """Seconds before the steps, choosing algorithms, compiling and capturing graphs: by how much the first task took
    longer than the next, of KCL."""

    def step(self, images: float) -> float:
        """Milliseconds of a step in which so many images pass the backbone: with rotation labels, another coreset or
        recalled samples. Scaled, not measured, but for the two counts that were: on the straight line through both.
        """
        return self.others + (self.kcl - self.others) * (images - BATCH) / (self.images - BATCH)

    def memory(self, images: float) -> float:
        """Gigabytes for such steps: scaled, not measured; never less than what was."""
        return self.gigabytes * max(1.0, images / self.images)


SPEEDS = {
    "mlp": Speed(0.417, 0.212, 210, 1.7, 10.8),
    "cifar-resnet": Speed(3.687, 1.267, 110, 2.1, 5.8),
    "miniimagenet-resnet": Speed(5.872, 1.704, 160, 4.7, 2.5),
}
"""By backbone."""


def speed_of(backbone: str) -> Speed:
    """A backbone that was not measured counts as the MLP in time and as the largest in memory."""
    largest = max(speed.gigabytes for speed in SPEEDS.values())
    return SPEEDS.get(backbone, SPEEDS["mlp"]._replace(gigabytes=largest))
