"""SGD with momentum for many runs at once."""

from __future__ import annotations

import torch
from torch import Tensor

from kcl.core.shapes import Bool, Float
from kcl.ops.operation import Backend, Operation, traced, triton_available

BLOCK = 2048


def _descend(
    flat: Float[Tensor, "s p"],
    velocity: Float[Tensor, "s p"],
    gradient: Float[Tensor, "s p"],
    alive: Bool[Tensor, "s 1"],
    rate: Float[Tensor, "s 1"],
    momentum: Float[Tensor, "s 1"],
) -> None:
    """v ← momentum · v + g in place, and x ← x − rate · v for the runs that are alive."""
    velocity.mul_(momentum).add_(gradient)
    flat.copy_(torch.where(alive, flat - rate * velocity, flat))


@torch.library.custom_op("kcl::descend", mutates_args=("flat", "velocity"))
def _triton(flat: Tensor, velocity: Tensor, gradient: Tensor, alive: Tensor, rate: Tensor, momentum: Tensor) -> None:
    from kcl.ops import kernels_triton

    runs, size = flat.shape
    grid = (-(-size // BLOCK), runs)
    kernels_triton.descend[grid](flat, velocity, gradient.contiguous(), alive, rate, momentum, size, BLOCK)


_triton.register_fake(lambda *_: None)

# A compiler fuses the reference with what produces the gradient.
descend = Operation(
    "descend", _descend, [Backend("Triton", "cuda", _triton, lambda *_: not traced(), triton_available)]
)
