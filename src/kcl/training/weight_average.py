"""An exponential average of the weights, used at test: of one run, and of many.

After update t (from 0) the average moves to the present weights by 1 − d_t, with d_t = min(d, (1 + t) / (1 + r + t)):
it reaches back over 1 / (1 − d) updates, and never over more than about one in r of those made so far. BatchNorm's
running statistics are averaged in the same way, for they belong to the weights.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from kcl.core.settings import Settings
from kcl.core.shapes import Float
from kcl.training.checkpoint import Tree, fit, fit_all


class Reach(NamedTuple):
    """How far back an average reaches: d and r."""

    decay: float
    ramp: float


def reach(settings: Settings) -> Reach:
    """Of the average that runs with these settings answer with, if they do."""
    return Reach(settings.weight_average, settings.average_ramp)


def weights_size(model: nn.Module) -> int:
    """Bytes of a model's weights and running statistics, which an average holds once more."""
    return sum(tensor.numel() * tensor.element_size() for tensor in model.state_dict().values())


def named(place: int) -> str:
    """An average in a checkpoint; a run that is tested in several ways may have several."""
    return "average" if place == 0 else f"average {place}"


class WeightAverage(nn.Module):
    """For one run: `model` holds the average."""

    updates: Tensor

    def __init__(self, model: nn.Module, reach: Reach) -> None:
        super().__init__()
        self.model, self.reach = copy.deepcopy(model).requires_grad_(False), reach
        device = next(model.parameters()).device
        self.register_buffer("updates", torch.zeros(1, dtype=torch.int64, device=device))
        self._count = 0

    @torch.no_grad()
    def update(self, model: nn.Module) -> None:
        weight = 1.0 - min(self.reach.decay, (1.0 + self._count) / (1.0 + self.reach.ramp + self._count))
        pairs = [*zip(self.model.parameters(), model.parameters(), strict=True)]
        for own, present in [*pairs, *zip(self.model.buffers(), model.buffers(), strict=True)]:
            if own.is_floating_point():
                own.lerp_(present, weight)
            else:
                own.copy_(present)
        self._count += 1
        self.updates.fill_(self._count)

    def restore(self, given: Tree) -> None:
        """Go on from a saved state."""
        self.load_state_dict(fit_all(given, self.state_dict(), "average"))
        self._count = int(self.updates)


class StackedAverage:
    """For many runs: the average of their flat parameters and of their running statistics."""

    def __init__(self, flat: Float[Tensor, "s p"], running: Sequence[Tensor], reaches: Sequence[Reach]) -> None:
        self.flat, self.running = flat.clone(), [tensor.clone() for tensor in running]
        self.reach = torch.tensor(reaches, dtype=flat.dtype, device=flat.device)
        self.updates = torch.zeros(1, dtype=torch.int64, device=flat.device)

    def tensors(self) -> list[Tensor]:
        """All there is, as `update` takes it."""
        return [self.reach, self.updates, self.flat, *self.running]

    def saved(self) -> Tree:
        running = {str(place): tensor for place, tensor in enumerate(self.running)}
        return {"weights": self.flat, "updates": self.updates, "running": running}

    def load(self, given: Tree) -> None:
        """The inverse of `saved`, in the tensors that are here already."""
        own = self.saved()
        for name in ("weights", "updates"):
            own[name].copy_(fit(given.get(name), own[name], f"average/{name}"))
        for name, tensor in fit_all(given.get("running"), own["running"], "average/running").items():
            own["running"][name].copy_(tensor)


def update(
    average: Sequence[Tensor],
    flat: Float[Tensor, "s p"],
    running: Sequence[Tensor],
    alive: Tensor,
    owners: Sequence[Tensor],
) -> None:
    """Move the averages of the runs that are alive (s × 1), in place. `owners`: whose an entry of `running` is."""
    reach, updates, flat_average, *running_averages = average
    decay, ramp = reach.split(1, dim=1)
    done = updates.to(flat.dtype)
    weight = alive * (1.0 - torch.minimum(decay, (1.0 + done) / (1.0 + ramp + done)))
    flat_average.lerp_(flat, weight)
    for own, present, owner in zip(running_averages, running, owners, strict=True):
        if own.is_floating_point():
            own.lerp_(present, weight[:, 0][owner].to(own.dtype))
        else:
            own.copy_(torch.where(alive[:, 0][owner], present, own))
    updates.add_(1)
