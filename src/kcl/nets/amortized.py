"""Amortised Gaussians over frequencies: the inference network f_φ and the prior network f_γ."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from kcl.core.shapes import Float
from kcl.functional.gaussian import DiagonalGaussian
from kcl.ops import affine_rows


class AmortizedGaussians(nn.Module):
    """q(ω | set) from the mean of a set's features, so that the order of the set cannot matter.

    Each Gaussian has two networks, for mean and log-variance, each Linear–ELU–Linear–ELU–Linear at feature width. All
    networks have the same shape, so their weights are stacked and each layer is one batched product.
    """

    def __init__(self, features: int, count: int = 1) -> None:
        super().__init__()
        bound = 1.0 / math.sqrt(features)  # what nn.Linear uses, for weights and biases alike
        self.weights = nn.ParameterList(
            nn.Parameter(torch.empty(2 * count, features, features).uniform_(-bound, bound)) for _ in range(3)
        )
        self.biases = nn.ParameterList(
            nn.Parameter(torch.empty(2 * count, 1, features).uniform_(-bound, bound)) for _ in range(3)
        )

    def forward(self, pooled: Float[Tensor, "g d"]) -> list[DiagonalGaussian]:
        """One Gaussian per row; with fewer rows than Gaussians, the first ones."""
        x = pooled.repeat_interleave(2, dim=0)[:, None, :]
        for layer, (weight, bias) in enumerate(zip(self.weights, self.biases, strict=True)):
            if len(x) < len(weight):
                weight, bias = weight[: len(x)], bias[: len(x)]
            x = affine_rows(F.elu(x) if layer else x, weight, bias)
        values = x.squeeze(1).unbind(0)
        return [DiagonalGaussian(*pair) for pair in zip(values[::2], values[1::2], strict=True)]
