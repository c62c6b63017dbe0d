"""SGD with momentum for many runs in one kernel; `training.state.descend` says it in PyTorch."""

from __future__ import annotations

import torch
from torch import Tensor

from kcl.core.shapes import Bool, Float

BLOCK = 2048


@torch.library.custom_op("kcl::descend", mutates_args=("flat", "velocity"))
def _descend(flat: Tensor, velocity: Tensor, gradient: Tensor, alive: Tensor, rate: Tensor, momentum: Tensor) -> None:
    from kcl.ops import descent_kernel

    runs, size = flat.shape
    grid = (-(-size // BLOCK), runs)
    descent_kernel.descend[grid](flat, velocity, gradient.contiguous(), alive, rate, momentum, size, BLOCK)


@_descend.register_fake
def _(flat: Tensor, velocity: Tensor, gradient: Tensor, alive: Tensor, rate: Tensor, momentum: Tensor) -> None:
    return None


def descend(
    flat: Float[Tensor, "s p"],
    velocity: Float[Tensor, "s p"],
    gradient: Float[Tensor, "s p"],
    alive: Bool[Tensor, "s 1"],
    rate: Float[Tensor, "s 1"],
    momentum: Float[Tensor, "s 1"],
) -> None:
    """v ← momentum · v + g, and x ← x − rate · v for the runs that are alive."""
    torch.ops.kcl.descend(flat, velocity, gradient, alive, rate, momentum)
