"""What a task's classifier learns besides the kernel: ridge strength λ, and scale and shift of its logits."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from kcl.core.shapes import Float

STRENGTH_FLOOR = 0.01


class HeadState(NamedTuple):
    """The learned values of one task, kept with its coreset, so that every task is tested with its own."""

    strength: Float[Tensor, ""]
    scale: Float[Tensor, ""]
    shift: Float[Tensor, ""]


class KernelRidgeHead(nn.Module):
    """λ = |l| + 0.01 > 0 by construction, scale and shift unconstrained. Reset at each task.

    Only the current task's values are trained, so the module holds just those, however many tasks there are.
    """

    def __init__(self, strength: float = 0.1) -> None:
        super().__init__()
        self.initial = strength
        self.raw_strength = nn.Parameter(torch.tensor(strength))
        self.scale = nn.Parameter(torch.tensor(1.0))
        self.shift = nn.Parameter(torch.tensor(0.0))

    @torch.no_grad()
    def restart(self, warm: bool = False) -> None:
        """Reset for a new task; if `warm`, λ and scale keep their values."""
        if not warm:
            self.raw_strength.fill_(self.initial)
            self.scale.fill_(1.0)
        self.shift.fill_(0.0)

    def forward(self) -> HeadState:
        return HeadState(self.raw_strength.abs() + STRENGTH_FLOOR, self.scale, self.shift)
