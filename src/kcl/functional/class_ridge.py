"""Ridge regression on one-hot classes that weigh the same, however many samples they have; λ by leaving samples out.

It minimises Σ_i w_i ‖y_i − ψ_iW‖² + λ‖W‖² with w_i inversely proportional to the samples of y_i's class: the primal
form of Eq. 1 over many classes. λ is the one whose predictions for samples left out have the smallest squared error.
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from kcl.core.shapes import Float, Int
from kcl.functional import primal, statistics
from kcl.functional.primal import Spectrum
from kcl.functional.statistics import SecondMoment, Statistics

STRENGTHS = tuple(10.0 ** (place / 2.0) for place in range(-10, 9))
"""λ to choose from, relative to the mean of ‖ψ‖²."""
MOST_LEFT_OUT, MOST_PREDICTED = 2000, 1_000_000
"""Samples that are left out in turn, and numbers that are predicted for them; more would cost more than they tell."""
LEAST_LEFT_OUT = 500


class ClassRidge(NamedTuple):
    """The solution, and what else answers need of it."""

    weights: Float[Tensor, "D c"]
    spectrum: Spectrum
    strength: float
    rows: Int[Tensor, " k"]
    """The samples that were left out, all copies of each."""
    left_out: Float[Tensor, "k c"]
    """What all other samples predict for them."""
    error: float
    """The mean of their squared errors, of balanced classes."""


def solve(features: Float[Tensor, "m D"], labels: Int[Tensor, " m"], classes: int, copies: int = 1) -> ClassRidge:
    """`copies`: of every sample that `features` has, a block of samples apart; they are left out together."""
    features = features.double()
    weights = balanced(labels, classes)
    spectrum = primal.spectrum(of_classes(features, labels, weights, classes))
    samples = len(features) // copies
    left = torch.arange(samples, device=labels.device)
    most = min(MOST_LEFT_OUT, max(LEAST_LEFT_OUT, MOST_PREDICTED // classes))
    if samples > most:
        left = torch.linspace(0, samples - 1, most, device=labels.device).long()
    rows = (torch.arange(copies, device=labels.device)[:, None] * samples + left).flatten()
    projected, targets = features[rows] @ spectrum.vectors, F.one_hot(labels[rows], classes).double()
    residuals = partial(_left_out_residuals, projected, targets, weights[rows], spectrum, copies)
    errors = [float((weights[rows, None] * residuals(spectrum.scale * each).square()).sum()) for each in STRENGTHS]
    best = min(range(len(STRENGTHS)), key=errors.__getitem__)
    strength = spectrum.scale * STRENGTHS[best]
    solution, mean_error = primal.weights(spectrum, strength), errors[best] / float(weights[rows].sum())
    return ClassRidge(solution, spectrum, strength, rows, targets - residuals(strength), mean_error)


def balanced(labels: Int[Tensor, " m"], classes: int) -> Float[Tensor, " m"]:
    """Weights of samples with which all classes weigh the same, one on average over classes."""
    counts = torch.bincount(labels, minlength=classes).double()
    return (counts.sum() / (counts > 0).sum() / counts.clamp_min(1.0))[labels]


def of_classes(
    features: Float[Tensor, "m D"], labels: Int[Tensor, " m"], weights: Float[Tensor, " m"], classes: int
) -> Statistics:
    """The statistics of weighted samples with one-hot targets, without forming these."""
    rows = weights.sqrt()[:, None] * features
    cross = features.new_zeros(classes, features.shape[1]).index_add_(0, labels, weights[:, None] * features).mT
    counts = features.new_zeros(classes).index_add_(0, labels, weights)
    return Statistics(statistics.add_moments([SecondMoment(rows=rows)]), cross, counts, counts, float(counts.sum()))


def _left_out_residuals(
    projected: Float[Tensor, "k r"],
    targets: Float[Tensor, "k c"],
    weights: Float[Tensor, " k"],
    spectrum: Spectrum,
    copies: int,
    strength: float,
) -> Float[Tensor, "k c"]:
    """y − f without the sample and its copies: (I − H)⁻¹(y − f), with H their block of the matrix that predicts all
    samples from their targets (Rasmussen and Williams, 2006, Eq. 5.12, in the primal form). Copies of a sample weigh
    the same.
    """
    shrunk = 1.0 / (spectrum.values + strength)
    residuals = targets - projected @ (shrunk[:, None] * spectrum.projected)
    together = projected.unflatten(0, (copies, -1)).transpose(0, 1)
    blocks = weights[: len(together), None, None] * (together * shrunk) @ together.mT
    left = torch.eye(copies, dtype=blocks.dtype, device=blocks.device) - blocks
    solved = torch.linalg.solve(left, residuals.unflatten(0, (copies, -1)).transpose(0, 1))
    return solved.transpose(0, 1).flatten(0, 1)
