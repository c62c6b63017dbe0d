"""The diagonal of the Fisher information of a classifier."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.func import jacrev, vmap

from kcl.core.shapes import Float

CHUNK = 8
"""Samples whose gradients are in memory at once: each takes classes × parameters numbers."""


def diagonal_fisher(
    log_probabilities: Callable[[dict[str, Tensor], Tensor], Tensor],
    parameters: dict[str, Tensor],
    inputs: Float[Tensor, "n ..."],
) -> dict[str, Tensor]:
    """F_j = 1/n Σ_x Σ_y p(y|x) (∂ log p(y|x) / ∂θ_j)², the expectation over labels taken exactly.

    `log_probabilities(parameters, x)` is log p(y|x) for every y of ONE input.
    """
    total = {name: torch.zeros_like(parameter) for name, parameter in parameters.items()}
    slopes = vmap(jacrev(log_probabilities), (None, 0))
    for part in inputs.split(CHUNK):
        probabilities = vmap(log_probabilities, (None, 0))(parameters, part).exp()
        for name, slope in slopes(parameters, part).items():
            total[name] += torch.einsum("nc,nc...->...", probabilities, slope.square())
    return {name: value / len(inputs) for name, value in total.items()}
