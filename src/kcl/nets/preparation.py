"""How images are prepared for a pretrained network: said by the user, since no file of weights says it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from kcl.core.settings import nearest
from kcl.core.shapes import Float, UInt8
from kcl.errors import KclError

FILTERS = ("bicubic", "bilinear")


@dataclass(frozen=True)
class Preparation:
    """The largest centred square, resized to `size` / `crop` pixels by the filter of image libraries; its centred
    `size` pixels, divided by 255, less `mean`, divided by `std`.
    """

    size: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    crop: float = 1.0
    filter: str = "bicubic"

    def __post_init__(self) -> None:
        if self.filter not in FILTERS:
            raise KclError(f"unknown filter {self.filter!r}; {nearest(self.filter, list(FILTERS))}")
        if self.size < 1 or not 0.0 < self.crop <= 1.0:
            raise KclError(f"images need at least one pixel and crop in 0 … 1, not {self.size} and {self.crop}")
        if not self.mean or len(self.mean) != len(self.std) or not min(self.std) > 0.0:
            raise KclError(f"mean and std need one number for each channel, not {self.mean} and {self.std}")

    @property
    def side(self) -> int:
        """Of the square before the crop."""
        return round(self.size / self.crop)

    def check(self, images: np.ndarray) -> None:
        """Raise unless these are images as files hold them, channels first."""
        if images.dtype != np.uint8:
            raise KclError(f"images must be bytes, 0 … 255 (uint8), not {images.dtype}: mean and std scale them")
        shape = images.shape
        if len(shape) != 4 or shape[1] not in (1, len(self.mean)) or 0 in shape:
            advice = "; give them channels first" if len(shape) == 4 and shape[3] in (1, 3) else ""
            raise KclError(f"images have shape {shape}; expected n × {len(self.mean)} × height × width{advice}")

    def __call__(self, images: UInt8[Tensor, "n _ _ _"]) -> Float[Tensor, "n _ _ _"]:
        height, width = images.shape[2:]
        short = min(height, width)
        top, left, edge = (height - short) // 2, (width - short) // 2, (self.side - self.size) // 2
        x = images[:, :, top : top + short, left : left + short].float()
        if short != self.side:
            # In an enlargement `antialias` only chooses the filter: Keys's with a = -1/2, as Pillow has it, not -3/4.
            x = (
                F.interpolate(x, size=(self.side, self.side), mode=self.filter, antialias=True)
                .round()
                .clamp(0.0, 255.0)
            )
        x = x[:, :, edge : edge + self.size, edge : edge + self.size].expand(-1, len(self.mean), -1, -1)
        mean, std = (torch.tensor(values, device=x.device).view(1, -1, 1, 1) for values in (self.mean, self.std))
        return (x / 255.0 - mean) / std
