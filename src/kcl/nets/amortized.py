"""Amortised Gaussians over frequencies: the inference network f_φ and the prior network f_γ."""

from __future__ import annotations

from torch import Tensor, nn

from kcl.functional.gaussian import DiagonalGaussian
from kcl.shapes import Float


def _three_layers(width: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(width, width), nn.ELU(), nn.Linear(width, width), nn.ELU(), nn.Linear(width, width))


class AmortizedGaussian(nn.Module):
    """q(ω | set) from the mean of the set's features, so that the order of the set cannot matter.

    Mean and log-variance have networks of their own, each Linear–ELU–Linear–ELU–Linear at feature width.
    """

    def __init__(self, features: int) -> None:
        super().__init__()
        self.mean = _three_layers(features)
        self.log_variance = _three_layers(features)

    def forward(self, pooled: Float[Tensor, d]) -> DiagonalGaussian:
        return DiagonalGaussian(self.mean(pooled), self.log_variance(pooled))
