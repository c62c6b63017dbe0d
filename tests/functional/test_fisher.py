"""The diagonal Fisher of linear classifiers, whose Fisher is known."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from kcl.functional.fisher import diagonal_fisher


@pytest.mark.parametrize("samples", [1, 8, 19])
def test_of_softmax_regression_is_the_closed_form(draw64: Any, samples: int) -> None:
    """log p(y|x) = (Wx + b)_y − log Σ exp: F(W_kj) = E p_k (1 − p_k) x_j² and F(b_k) = E p_k (1 − p_k)."""
    weight, bias, inputs = draw64.normal(3, 4), draw64.normal(3), draw64.normal(samples, 4)

    def log_probabilities(parameters: dict[str, Tensor], x: Tensor) -> Tensor:
        return (parameters["weight"] @ x + parameters["bias"]).log_softmax(0)

    found = diagonal_fisher(log_probabilities, {"weight": weight, "bias": bias}, inputs)
    probabilities = torch.softmax(inputs @ weight.T + bias, 1)
    spread = probabilities * (1.0 - probabilities)
    torch.testing.assert_close(found["bias"], spread.mean(0))
    torch.testing.assert_close(found["weight"], torch.einsum("nk,nj->kj", spread, inputs.square()) / samples)
