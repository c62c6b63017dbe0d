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

SHRINKAGE = 0.99
"""Share of the within-class scatter in the covariance that classes share; the rest is a multiple of the identity."""
NEVER = -1e9
"""The score of a class that has no samples."""


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


class Coresets(NamedTuple):
    """The union of all coresets, as a head sees it."""

    features: Float[Tensor, "m D"]
    labels: Int[Tensor, " m"]
    counts: Int[Tensor, " c"]
    """Samples of each class."""
    copies: int
    """Of every sample, a block of samples apart."""
    matched: Float[Tensor, "m c"] | None = None
    """Targets with which the samples have the class means of all that was learned, where there are such."""

    def means(self) -> Float[Tensor, "c D"]:
        if self.matched is not None:
            targets = self.matched.to(self.features.dtype)
            return (targets.mT @ self.features) / targets.sum(0).clamp_min(1.0)[:, None]
        sums = self.features.new_zeros(len(self.counts), self.features.shape[1])
        return sums.index_add_(0, self.labels, self.features) / self.counts.clamp_min(1)[:, None]


def joint_ridge(union: Coresets) -> Solved:
    """Ridge regression on one-hot targets with one λ, chosen by leave-one-out."""
    ridge = class_ridge.solve(union.features, union.labels, len(union.counts), union.copies)
    return Solved(ridge.weights, ridge.weights.new_zeros(len(union.counts)), ridge)


def class_means(union: Coresets) -> Solved:
    """The nearest mean: −‖ψ − μ_c‖²/2 without what all classes have in common."""
    means = union.means()
    return _nearest(means.mT, means, union)


def shared_covariance(union: Coresets) -> Solved:
    """The nearest mean by the covariance within classes, which they share: linear discriminant analysis."""
    targets = F.one_hot(union.labels, len(union.counts)).to(union.features.dtype)
    metric, means = metric_of(scatter_within(union.features, targets), SHRINKAGE), union.means()
    return _nearest(metric @ (metric @ means.mT), means, union)


def _nearest(weights: Float[Tensor, "D c"], means: Float[Tensor, "c D"], union: Coresets) -> Solved:
    """μ_cᵀ M² ψ − μ_cᵀ M² μ_c / 2. A class without samples is never the nearest."""
    return Solved(weights, (-(means.mT * weights).sum(0) / 2.0).masked_fill(union.counts == 0, NEVER))


CLASS_HEADS: dict[str, Callable[[Coresets], Solved]] = {
    "joint-ridge": joint_ridge,
    "class-means": class_means,
    "shared-covariance": shared_covariance,
}


def fit(
    settings: KclSettings,
    x: Float[Tensor, "m d"],
    labels: Int[Tensor, " m"],
    classes: int,
    copies: int,
    rng: np.random.Generator,
    matched: Float[Tensor, "m c"] | None = None,
) -> ClassHead:
    """The head of samples with backbone features x. `copies` and `matched`: as in `Coresets`."""
    metric = None
    if settings.shared_metric:
        metric = metric_of(scatter_within(x, F.one_hot(labels, classes).to(x.dtype)), settings.shared_metric)
        x = x @ metric
    feature_map = FOR_MANY_RUNS[settings.class_features]
    buffers = _drawn(feature_map, x, settings.class_bases, rng)
    features = feature_map.apply(x.double(), buffers).nan_to_num(0.0, 0.0, 0.0)  # which no factorisation could take
    union = Coresets(features, labels, torch.bincount(labels, minlength=classes), copies, matched)
    return ClassHead(CLASS_HEADS[settings.class_head](union), buffers, metric)


def _drawn(feature_map: FeatureMap, x: Float[Tensor, "m d"], bases: int, rng: np.random.Generator) -> Buffers:
    """The map's tensors, with the kernel's width in the frequencies."""
    width = median_distance(x, rng, feature_map.norm) if feature_map.local else 1.0
    drawn = {name: tensor.to(x.device) for name, tensor in feature_map.draw(x.shape[1], bases, rng).items()}
    return {name: tensor / width if name == "frequencies" else tensor for name, tensor in drawn.items()}


def features_of(settings: KclSettings, head: dict[str, Tensor], x: Float[Tensor, "n d"]) -> Float[Tensor, "n D"]:
    """ψ(xM), from the backbone's features and `ClassHead.tensors`."""
    return FOR_MANY_RUNS[settings.class_features].apply(x @ head["metric"] if "metric" in head else x, head)


def scores(settings: KclSettings, head: dict[str, Tensor], x: Float[Tensor, "n d"]) -> Float[Tensor, "n c"]:
    """The scores of all classes."""
    return torch.addmm(head["shift"], features_of(settings, head, x), head["weights"])
