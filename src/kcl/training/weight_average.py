"""An exponential moving average (EMA) of the weights, used at test.

After update t (from 0) the average moves towards the current weights by 1 − d_t, d_t = min(d, (1 + t) / (1 + r + t)):
it reaches back over 1 / (1 − d) updates, and never over more than about one in r of those made so far. BatchNorm's
running statistics are averaged in the same way, because they belong to the weights.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from kcl.core.settings import Settings
from kcl.core.shapes import Float
from kcl.methods.method import Method
from kcl.training.checkpoint import Tree
from kcl.training.optimizers import zeros_beside


class AverageHorizon(NamedTuple):
    """How far back an average reaches: d and r."""

    decay: float
    ramp: float


def horizon(settings: Settings) -> AverageHorizon:
    """The horizon of the average that runs with these settings are tested with; a decay of zero means none."""
    return AverageHorizon(settings.weight_average, settings.average_ramp)


def horizons(variants: Sequence[Method]) -> list[AverageHorizon]:
    """The distinct averages that the variants of a training are tested with."""
    return [each for each in dict.fromkeys(horizon(method.settings) for method in variants) if each.decay]


def weights_size(model: nn.Module) -> int:
    """Bytes of a model's weights and running statistics, which an average adds once more."""
    return sum(tensor.numel() * tensor.element_size() for tensor in model.state_dict().values())


class WeightAverage:
    """The average of the flat parameters and of the running statistics of s runs."""

    def __init__(
        self, flat: Float[Tensor, "s p"], running: Sequence[Tensor], horizons: Sequence[AverageHorizon]
    ) -> None:
        self.flat, self.running = zeros_beside(flat, 3).copy_(flat), [tensor.clone() for tensor in running]
        self.horizons = horizons
        self.limits = torch.tensor(horizons, dtype=flat.dtype, device=flat.device)
        self.updates = torch.zeros(1, dtype=torch.int64, device=flat.device)

    def tensors(self) -> list[Tensor]:
        """Everything `update` reads and changes."""
        return [self.limits, self.updates, self.flat, *self.running]

    def update_alone(self, flat: Float[Tensor, "1 p"], running: Sequence[Tensor]) -> None:
        """`update` for a single run that is alive, with the decay computed in double precision on the host."""
        (decay, ramp), done = self.horizons[0], int(self.updates)
        weight = 1.0 - min(decay, (1.0 + done) / (1.0 + ramp + done))
        for average, present in zip([self.flat, *self.running], [flat, *running], strict=True):
            if average.is_floating_point():
                average.lerp_(present, weight)
            else:
                average.copy_(present)
        self.updates.add_(1)

    def saved(self) -> Tree:
        running = {str(place): tensor for place, tensor in enumerate(self.running)}
        return {"weights": self.flat, "updates": self.updates, "running": running}


def update(
    average: Sequence[Tensor],
    flat: Float[Tensor, "s p"],
    running: Sequence[Tensor],
    alive: Float[Tensor, "s 1"],
    owners: Sequence[Tensor],
) -> None:
    """Update the averages of the runs that are alive, in place. `owners`: the run of each entry of `running`."""
    limits, updates, flat_average, *running_averages = average
    decay, ramp = limits.split(1, dim=1)
    done = updates.to(flat.dtype)
    weight = alive * (1.0 - torch.minimum(decay, (1.0 + done) / (1.0 + ramp + done)))
    flat_average.lerp_(flat, weight)
    for running_average, present, owner in zip(running_averages, running, owners, strict=True):
        if running_average.is_floating_point():
            running_average.lerp_(present, weight[:, 0][owner].to(running_average.dtype))
        else:
            running_average.copy_(torch.where(alive[:, 0][owner], present, running_average))
    updates.add_(1)
