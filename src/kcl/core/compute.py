"""How runs are computed: their settings decide what is computed, this the device, the speed and the last digits."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Compute:
    device: str = "cpu"
    compiled: bool | None = None
    """Whether PyTorch's compiler fuses the training step; None: only that of long runs on a GPU."""
    precision: str = "tf32"
    """One of `ops.precision.PRECISIONS`."""
    runs_at_once: int | None = None
    """Trainings per group on a GPU; None: as many as fit in its memory. On a CPU every training is its own group."""

    @property
    def torch_device(self) -> torch.device:
        return torch.device(self.device)

    @property
    def on_cpu(self) -> bool:
        return self.torch_device.type == "cpu"

    @property
    def plain(self) -> bool:
        """Whether trainings are stepped one at a time without vmap: on a CPU, unless the step is compiled."""
        return self.on_cpu and not self.compiled
