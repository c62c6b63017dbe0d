"""How runs are computed: the device, its threads, the speed and the last digits; their settings say what."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kcl import __version__
from kcl.errors import KclError

if TYPE_CHECKING:
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
        import torch

        return torch.device(self.device)

    @property
    def on_cpu(self) -> bool:
        return self.torch_device.type == "cpu"

    @property
    def plain(self) -> bool:
        """Whether trainings are stepped one at a time without vmap: on a CPU, unless the step is compiled."""
        return self.on_cpu and not self.compiled


def device_name(device: torch.device) -> str:
    import torch

    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type


def describe_machine(device: str) -> dict[str, Any]:
    """What a file of measurements says about where they were made."""
    import torch

    return {"device": device_name(torch.device(device)), "versions": {"kcl": __version__, "torch": torch.__version__}}


def choose_device(name: str) -> str:
    """`auto` is a GPU if there is one."""
    import torch

    available = torch.cuda.is_available()
    if name == "cuda" and not available:
        raise KclError("--device cuda: PyTorch finds no CUDA GPU; use --device cpu")
    return "cuda" if available and name != "cpu" else "cpu"


def usable_device(device: str | torch.device) -> str | torch.device:
    """The same, if PyTorch can compute there; `auto` is a GPU if there is one."""
    import torch

    if device == "auto":
        return choose_device("auto")
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise KclError(f"PyTorch cannot compute on device {str(device)!r}: {reason}") from None
    return device


def choose_threads(threads: int | None) -> int:
    """One thread by default: the order of a sum, and with it the last digits of a result, depends on the number.

    Threads that share a core with other processes also wait for each other far longer than they save.
    """
    cores = os.cpu_count() or 1
    if threads is not None and not 1 <= threads <= cores:
        raise KclError(f"--threads must be a whole number from 1 to {cores}, the cores of this machine, not {threads}")
    return threads or 1
