"""A task's classifier ready to answer: all that does not depend on the query, folded into as few products as can be.

With an explicit kernel ψ the head is logits(x) = scale · ψ(x) W + shift, W = ψ(C)ᵀα (D × c). For random Fourier
features ψ(x) = √(2/D) cos(ωx + b) with ω = μ + σε formed once, so that a query costs the backbone, one D × d product
and one D × c product, whatever the coreset's size and however many tasks there are. Scale and √(2/D) are put into W.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from kcl.core.shapes import Float
from kcl.functional import ridge
from kcl.functional.kernels import Kernel
from kcl.nets.head import HeadState


class Head(NamedTuple):
    """The classifier of one task at the weights the model had, for r draws of ω (one where the kernel has none).

    D stands for what a query is represented by: random features, or the d features themselves.
    """

    weights: Float[Tensor, "r k c"]
    """scale · √(2/D) · W (k = D) where the kernel is explicit, else scale · α (k = m)."""
    scale: Float[Tensor, ""]
    shift: Float[Tensor, ""]
    halves: Float[Tensor, "r m k"]
    """√(2/D) · L⁻¹ψ(C) (k = D) where the kernel is explicit, else L⁻¹ (k = m): for the predictive variance."""
    usual: Float[Tensor, "r 2"]
    """Mean and standard deviation of the coreset's own variances, each sample left out in turn."""
    frequencies: Float[Tensor, "r D d"] | None = None
    phases: Float[Tensor, " D"] | None = None
    anchors: Float[Tensor, "m d"] | None = None
    """The coreset's features; None where the kernel is explicit and they are no longer needed."""
    moments: Float[Tensor, " k"] | None = None
    """The coreset's statistics that BatchNorm uses for queries; None for the running ones."""
    metric: Float[Tensor, "d d"] | None = None
    """What a query's features are multiplied with first; None where all directions count alike."""

    def tensors(self) -> dict[str, Tensor]:
        """All there is, by name, to be kept."""
        return {name: tensor for name, tensor in self._asdict().items() if tensor is not None}


def fold(
    kernel: Kernel,
    features: Float[Tensor, "m d"],
    targets: Float[Tensor, "m c"],
    learned: HeadState,
    frequencies: Float[Tensor, "D d"] | None = None,
    phases: Float[Tensor, " D"] | None = None,
) -> Head:
    """One draw's head from the coreset. `kernel` compares random features where there are `frequencies`."""
    strength, scale, shift = learned
    factor, own, anchors = 1.0, None, features
    if frequencies is not None and phases is not None:
        factor, own, anchors = math.sqrt(2.0 / len(phases)), frequencies[None], _waves(features, frequencies, phases)
    gram = factor**2 * kernel.compare(anchors, anchors)
    left_out = ridge.left_out_variance(gram, strength)
    usual = torch.stack([left_out.mean(), left_out.std(correction=0)])[None]
    if not kernel.explicit:
        identity = torch.eye(len(gram), dtype=gram.dtype, device=gram.device)
        dual, halves = ridge.dual_weights(gram, targets, strength), ridge.half_solve(gram, identity, strength)
        return Head((scale * dual)[None], scale, shift, halves[None], usual, anchors=anchors)
    primal = ridge.primal_weights(factor * anchors, targets, strength)
    halves = ridge.half_solve(gram, factor**2 * anchors, strength)
    return Head((factor * scale * primal)[None], scale, shift, halves[None], usual, own, phases)


def join(heads: Sequence[Head]) -> Head:
    """The heads of several draws of ω as one, every matrix row by row: a saved head answers the same, to the bit."""
    first = heads[0]
    if len(heads) > 1:
        parts = zip(*((head.weights, head.halves, head.usual, head.frequencies) for head in heads), strict=True)
        weights, halves, usual, frequencies = (torch.cat(part) for part in parts)
        first = first._replace(weights=weights, halves=halves, usual=usual, frequencies=frequencies)
    return Head(**{name: tensor.contiguous() for name, tensor in first.tensors().items()})


def scores(head: Head, kernel: Kernel, features: Float[Tensor, "n d"]) -> Float[Tensor, "n c"]:
    """Eq. 5. Several draws are averaged as probabilities, in the log domain."""
    features = measured(features, head.metric)
    return mix([_scores(head, _compare(head, kernel, features, draw), draw) for draw in range(len(head.weights))])


def scores_and_variance(
    head: Head, kernel: Kernel, features: Float[Tensor, "n d"]
) -> tuple[Float[Tensor, "n c"], Float[Tensor, " n"]]:
    """The same, and the predictive variance averaged over the draws."""
    features, logits, variances, fourier = measured(features, head.metric), [], [], head.phases is not None
    for draw in range(len(head.weights)):
        compared = _compare(head, kernel, features, draw)
        factor = 2.0 / compared.shape[-1] if fourier else 1.0
        prior = factor * compared.square().sum(-1) if fourier else kernel.diagonal(features)
        logits.append(_scores(head, compared, draw))
        variances.append(ridge.predictive_variance(prior, head.halves[draw] @ compared.mT))
    return mix(logits), torch.stack(variances).mean(0)


def measured(features: Float[Tensor, "n d"], metric: Float[Tensor, "d d"] | None) -> Float[Tensor, "n d"]:
    """Features in a metric, where there is one."""
    return features if metric is None else features @ metric


def mix(logits: Sequence[Float[Tensor, "n c"]]) -> Float[Tensor, "n c"]:
    """Logits of the mean of several predictions' probabilities; those of a single one as they are."""
    if len(logits) == 1:
        return logits[0]
    return torch.logsumexp(torch.stack(list(logits)).log_softmax(-1), dim=0) - math.log(len(logits))


def _scores(head: Head, compared: Float[Tensor, "n k"], draw: int) -> Float[Tensor, "n c"]:
    return torch.addmm(head.shift, compared, head.weights[draw])


def _compare(head: Head, kernel: Kernel, features: Float[Tensor, "n d"], draw: int) -> Float[Tensor, "n k"]:
    """What the head's matrices are multiplied with."""
    if head.frequencies is not None and head.phases is not None:
        return _waves(features, head.frequencies[draw], head.phases)
    return features if head.anchors is None else kernel.compare(features, head.anchors)


def _waves(features: Tensor, frequencies: Tensor, phases: Tensor) -> Float[Tensor, "n D"]:
    """cos(ωx + b); the factor √(2/D) of Eq. 7 is in the head's matrices."""
    return torch.addmm(phases, features, frequencies.mT).cos_()
