"""The way of a GPU where there is none."""

from __future__ import annotations

from kcl.core.devices import Compute


class LikeGpu(Compute):
    """Groups and stacks runs as on a GPU, but on the CPU."""

    on_cpu = False
