"""Which device and how many threads compute."""

from __future__ import annotations

import os

import torch

from kcl.errors import KclError


def device_name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type


def choose_device(name: str) -> str:
    """auto takes a GPU where there is one."""
    available = torch.cuda.is_available()
    if name == "cuda" and not available:
        raise KclError("--device cuda: PyTorch finds no CUDA GPU here; use --device cpu")
    return "cuda" if available and name != "cpu" else "cpu"


def choose_threads(asked: int | None) -> int:
    """One thread unless more are asked for: the order of a sum, and so the last digits of a result, depend on it.

    Threads that meet others on a core also wait for each other far longer than they save.
    """
    cores = os.cpu_count() or 1
    if asked is not None and not 1 <= asked <= cores:
        raise KclError(f"--threads must be a whole number from 1 to {cores}, the cores of this machine, not {asked}")
    return asked or 1
