"""Calibration of probabilities: the expected calibration error, and temperature scaling."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from kcl.core.shapes import Bool, Float, Int
from kcl.training.evaluation import predicted

BINS = 15
STEPS = 80
MOST = 20.0
"""Temperatures lie in 1/MOST … MOST: a few wrong samples would otherwise make answers coin tosses."""


def expected_calibration_error(
    confidence: Float[Tensor, " n"], correct: Bool[Tensor, " n"], bins: int = BINS
) -> float | None:
    """ECE = Σ_b n_b/n · |accuracy_b − confidence_b| over bins of equal width, a fraction; None without samples.

    Guo et al., "On calibration of modern neural networks", 2017, Eq. 3; bins are (0, 1/b], …, ((b − 1)/b, 1]. A
    confidence that is not a number is none at all: zero.
    """
    if len(confidence) == 0:
        return None
    confidence = confidence.double().nan_to_num(nan=0.0)
    bin_numbers = (confidence * bins).ceil().long().clamp(1, bins) - 1
    gaps = torch.zeros(bins, dtype=torch.float64, device=confidence.device)
    gaps.index_add_(0, bin_numbers, correct.double() - confidence)
    return float(gaps.abs().sum() / len(confidence))


def held_out_notes(logits: Float[Tensor, "n c"], labels: Int[Tensor, " n"]) -> dict[str, Any]:
    """What a model's history says of samples held out."""
    correct = predicted(logits) == labels
    return {
        "held_out": len(labels),
        "held_out_accuracy": 100.0 * float(correct.double().mean()),
        "held_out_ece": expected_calibration_error(logits.softmax(-1).amax(-1), correct),
    }


def fit_temperature(logits: Float[Tensor, "n c"], labels: Int[Tensor, " n"]) -> float:
    """The T > 0 that maximises the likelihood of the labels under softmax(logits / T) (Guo et al., 2017, Eq. 9).

    −log p is convex in 1/T, so a golden-section search finds the minimum. T does not change the predicted class. Fit it
    on held-out samples. Labels are smoothed by 1/(n + 2), as by Platt ("Probabilistic outputs for support vector
    machines", 1999): if all n samples are classified correctly, the likelihood alone would make every prediction
    certain. Samples whose scores are not finite say nothing.
    """
    finite = logits.isfinite().all(-1)
    if not bool(finite.any()):
        return 1.0
    logits, labels = logits[finite], labels[finite]
    scores, golden, smoothing = logits.double(), (math.sqrt(5.0) - 1.0) / 2.0, 1.0 / (len(labels) + 2)

    def loss(log_sharpness: float) -> float:
        return float(F.cross_entropy(scores * math.exp(log_sharpness), labels, label_smoothing=smoothing))

    low, high = -math.log(MOST), math.log(MOST)
    for _ in range(STEPS):
        left, right = high - golden * (high - low), low + golden * (high - low)
        low, high = (low, right) if loss(left) <= loss(right) else (left, high)
    return math.exp(-(low + high) / 2.0)
