"""One classifier over the classes of all tasks, from the union of all coresets at the present weights (not in the
paper). Nothing but the coresets is needed, and nothing goes stale.

Scores are ψ(xM)W + shift: ψ a feature map of the backbone's features x, drawn anew from the run's seed, M the metric of
all coresets where the settings have one. A head is a function in `CLASS_HEADS` that finds W and shift.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from kcl.core.shapes import Float, Int
from kcl.functional import class_ridge
from kcl.functional.class_ridge import ClassRidge
from kcl.functional.metric import metric_of, scatter_within
from kcl.methods.feature_maps import FOR_MANY_RUNS, Buffers, FeatureMap, median_distance

if TYPE_CHECKING:
    from kcl.methods.kcl_settings import KclSettings  # which names the heads

SHRINKAGE = 0.9
"""Share of the within-class scatter in the covariance that classes share; the rest is a multiple of the identity."""


class Solved(NamedTuple):
    """What a head finds for features ψ."""

    weights: Float[Tensor, "D c"]
    shift: Float[Tensor, " c"]
    ridge: ClassRidge | None = None


class ClassHead(NamedTuple):
    """The classifier: `Solved`, and how features are made of the backbone's."""

    solved: Solved
    buffers: Buffers
    metric: Float[Tensor, "d d"] | None = None

    def tensors(self) -> dict[str, Tensor]:
        """What `scores` needs, in single precision: one query among many classes takes as long as reading this."""
        tensors = {"weights": self.solved.weights, "shift": self.solved.shift, **self.buffers}
        tensors |= {} if self.metric is None else {"metric": self.metric}
        return {name: tensor.float().contiguous() for name, tensor in tensors.items()}


def joint_ridge(features: Float[Tensor, "m D"], labels: Int[Tensor, " m"], classes: int, copies: int) -> Solved:
    """Ridge regression on one-hot targets with one λ, chosen by leave-one-out."""
    ridge = class_ridge.solve(features, labels, classes, copies)
    return Solved(ridge.weights, ridge.weights.new_zeros(classes), ridge)


def class_means(features: Float[Tensor, "m D"], labels: Int[Tensor, " m"], classes: int, copies: int) -> Solved:  # noqa: ARG001
    """The nearest mean: −‖ψ − μ_c‖²/2 without what all classes have in common."""
    means = _means(features, labels, classes)
    return Solved(means.mT, -means.square().sum(1) / 2.0)


def shared_covariance(features: Float[Tensor, "m D"], labels: Int[Tensor, " m"], classes: int, copies: int) -> Solved:  # noqa: ARG001
    """The nearest mean by the covariance within classes, which they share: linear discriminant analysis."""
    targets = F.one_hot(labels, classes).to(features.dtype)
    metric, means = metric_of(scatter_within(features, targets), SHRINKAGE), _means(features, labels, classes)
    weights = metric @ (metric @ means.mT)
    return Solved(weights, -(means.mT * weights).sum(0) / 2.0)


def _means(features: Float[Tensor, "m D"], labels: Int[Tensor, " m"], classes: int) -> Float[Tensor, "c D"]:
    sums = features.new_zeros(classes, features.shape[1]).index_add_(0, labels, features)
    return sums / torch.bincount(labels, minlength=classes)[:, None]


CLASS_HEADS: dict[str, Callable[[Tensor, Tensor, int, int], Solved]] = {
    "joint-ridge": joint_ridge,
    "class-means": class_means,
    "shared-covariance": shared_covariance,
}


def fit(
    settings: KclSettings, x: Float[Tensor, "m d"], labels: Int[Tensor, " m"], rng: np.random.Generator, copies: int
) -> ClassHead:
    """The head of samples with backbone features x. `copies`: of every sample, a block of samples apart."""
    classes, metric = 1 + int(labels.max()), None
    if settings.shared_metric:
        metric = metric_of(scatter_within(x, F.one_hot(labels, classes).to(x.dtype)), settings.shared_metric)
        x = x @ metric
    feature_map = FOR_MANY_RUNS[settings.class_features]
    buffers = _drawn(feature_map, x, settings.class_bases, rng)
    features = feature_map.apply(x.double(), buffers)
    return ClassHead(CLASS_HEADS[settings.class_head](features, labels, classes, copies), buffers, metric)


def _drawn(feature_map: FeatureMap, x: Float[Tensor, "m d"], bases: int, rng: np.random.Generator) -> Buffers:
    """The map's tensors, with the kernel's width in the frequencies."""
    width = median_distance(x, rng, feature_map.norm) if feature_map.local else 1.0
    drawn = {name: tensor.to(x.device) for name, tensor in feature_map.draw(x.shape[1], bases, rng).items()}
    return {name: tensor / width if name == "frequencies" else tensor for name, tensor in drawn.items()}


def scores(settings: KclSettings, head: dict[str, Tensor], x: Float[Tensor, "n d"]) -> Float[Tensor, "n c"]:
    """The scores of all classes, from the backbone's features and `ClassHead.tensors`."""
    if "metric" in head:
        x = x @ head["metric"]
    return torch.addmm(head["shift"], FOR_MANY_RUNS[settings.class_features].apply(x, head), head["weights"])
