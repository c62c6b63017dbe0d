"""What every reader returns: one array of inputs per split, as stored and unscaled."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class Dataset:
    """Inputs as the files hold them (uint8 images as (n, channels, height, width)) and labels 0 … classes − 1."""

    name: str
    train_inputs: Tensor
    train_labels: Tensor
    test_inputs: Tensor
    test_labels: Tensor
    class_names: tuple[str, ...]
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None
    """Per channel, subtracted and divided out after bytes are divided by 255; None where that is not customary."""
    identity: str | None = None
    """Distinguishes contents of the same name; None where only one content is accepted."""
