"""A task's head: its kernel ridge classifier with everything that does not depend on the query folded in.

With an explicit kernel ψ, logits(x) = scale · ψ(x) W + shift with W = ψ(C)ᵀα (D × c). For random Fourier features
ψ(x) = √(2/D) cos(ωx + b), the frequencies ω are formed once, so that a query costs the backbone, one D × d product and
one D × c product, whatever the size of the coreset and however many tasks there are. Scale and √(2/D) are part of W.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from kcl.core.shapes import Float
from kcl.functional import ridge
from kcl.methods.ridge_kernels import Kernel
from kcl.ops import gram as float32_gram

STRENGTH_FLOOR = 0.01


class HeadState(NamedTuple):
    """What a task learns besides the kernel, kept with its coreset: λ, and scale and shift of its logits."""

    strength: Float[Tensor, ""]
    scale: Float[Tensor, ""]
    shift: Float[Tensor, ""]


class KernelRidgeHead(nn.Module):
    """λ = |l| + 0.01 > 0 by construction, scale and shift unconstrained. Reset at each task.

    Only the current task's values are trained, so the module holds just those, however many tasks there are.
    """

    def __init__(self, strength: float = 0.1) -> None:
        super().__init__()
        self.initial = strength
        self.raw_strength = nn.Parameter(torch.tensor(strength))
        self.scale = nn.Parameter(torch.tensor(1.0))
        self.shift = nn.Parameter(torch.tensor(0.0))

    @torch.no_grad()
    def restart(self, warm: bool = False) -> None:
        """Reset for a new task; if `warm`, λ and scale keep their values."""
        if not warm:
            self.raw_strength.fill_(self.initial)
            self.scale.fill_(1.0)
        self.shift.fill_(0.0)

    def forward(self) -> HeadState:
        return HeadState(self.raw_strength.abs() + STRENGTH_FLOOR, self.scale, self.shift)


class Head(NamedTuple):
    """The classifier of one task at the current weights, for r draws of ω (one if the kernel draws nothing).

    k is the number of values that represent a query: D random features, d features, or m kernel values.
    """

    weights: Float[Tensor, "r k c"]
    """scale · √(2/D) · W where the kernel is explicit, otherwise scale · α (k = m)."""
    scale: Float[Tensor, ""]
    shift: Float[Tensor, ""]
    halves: Float[Tensor, "r m k"] | None = None
    """√(2/D) · L⁻¹ψ(C) where the kernel is explicit, otherwise L⁻¹ (k = m): for the predictive variance, if needed."""
    usual: Float[Tensor, "r 2"] | None = None
    """Mean and standard deviation of the leave-one-out variances of the coreset's samples, if needed."""
    left_out: Float[Tensor, "r m c"] | None = None
    """Logits of the coreset's samples by all the others, with `usual`: what a temperature can be fitted to."""
    temperature: Float[Tensor, ""] | None = None
    """By which logits are divided, of a calibrated task."""
    frequencies: Float[Tensor, "r D d"] | None = None
    phases: Float[Tensor, " D"] | None = None
    anchors: Float[Tensor, "m d"] | None = None
    """The coreset's features; None where the kernel is explicit and they are no longer needed."""
    moments: Float[Tensor, " k"] | None = None
    """The coreset's statistics, if BatchNorm uses them for queries instead of its running averages."""
    metric: Float[Tensor, "d d"] | None = None
    """A matrix that features are multiplied by before the kernel sees them."""

    def tensors(self) -> dict[str, Tensor]:
        """The tensors that are not None, by name."""
        return {name: tensor for name, tensor in self._asdict().items() if tensor is not None}


def fold(
    kernel: Kernel,
    model: Any,
    features: Float[Tensor, "m d"],
    targets: Float[Tensor, "m c"],
    learned: HeadState,
    frequencies: Float[Tensor, "D d"] | None = None,
    variance: bool = True,
    copies: int = 1,
) -> Head:
    """The head of one draw, from the coreset. `frequencies`: for kernels with Fourier features. `copies`: of every
    sample that the coreset has.
    """
    strength, scale, shift = learned
    factor, phases, anchors = 1.0, None, features
    if frequencies is not None:
        phases = model.phases
        factor, anchors = math.sqrt(2.0 / len(phases)), _waves(features, frequencies, phases)
    weights = kernel.weights(model, factor * anchors, targets, strength)
    head = Head((factor * scale * weights)[None], scale, shift, anchors=None if kernel.explicit else anchors)
    if frequencies is not None:
        head = head._replace(frequencies=frequencies[None], phases=phases)
    if not variance:
        return head
    gram = factor**2 * float32_gram(anchors) if kernel.explicit else kernel.compare(model, anchors, anchors)
    left_out, variances = ridge.left_out(gram, targets, strength, copies)
    right = factor**2 * anchors if kernel.explicit else torch.eye(len(gram), dtype=gram.dtype, device=gram.device)
    usual, left_out = torch.stack([variances.mean(), variances.std(correction=0)]), scale * left_out + shift
    return head._replace(
        halves=ridge.half_solve(gram, right, strength)[None], usual=usual[None], left_out=left_out[None]
    )


def join(heads: Sequence[Head]) -> Head:
    """The heads of several draws of ω as one. Tensors are made contiguous, so that a saved head answers the same."""
    joined = heads[0]
    if len(heads) > 1:
        by_draw = ("weights", "halves", "usual", "left_out", "frequencies")
        parts = {name: [tensors[name] for head in heads if name in (tensors := head.tensors())] for name in by_draw}
        joined = joined._replace(**{name: torch.cat(part) for name, part in parts.items() if part})
    return Head(**{name: tensor.contiguous() for name, tensor in joined.tensors().items()})


def scores(
    head: Head, kernel: Kernel, model: Any, features: Float[Tensor, "n d"], onnx: bool = False
) -> Float[Tensor, "n c"]:
    """Eq. 5. Several draws are averaged as probabilities, in the log domain. `onnx`: by operations that ONNX has."""
    features = in_metric(features, head.metric)
    draws = range(len(head.weights))
    return mix([_scores(head, _compare(head, kernel, model, features, draw, onnx), draw) for draw in draws])


def scores_and_variance(
    head: Head, kernel: Kernel, model: Any, features: Float[Tensor, "n d"]
) -> tuple[Float[Tensor, "n c"], Float[Tensor, " n"]]:
    """The scores, and the predictive variance averaged over the draws."""
    assert head.halves is not None  # noqa: S101 - asked of heads that were folded with their variance
    features, logits, variances = in_metric(features, head.metric), [], []
    for draw in range(len(head.weights)):
        compared = _compare(head, kernel, model, features, draw)
        if kernel.fourier:
            prior = 2.0 / compared.shape[-1] * compared.square().sum(-1)
        else:
            prior = kernel.diagonal(model, features)
        logits.append(_scores(head, compared, draw))
        variances.append(ridge.predictive_variance(prior, head.halves[draw] @ compared.mT))
    return mix(logits), torch.stack(variances).mean(0)


def in_metric(features: Float[Tensor, "n d"], metric: Float[Tensor, "d d"] | None) -> Float[Tensor, "n d"]:
    """Features in a metric, if there is one."""
    return features if metric is None else features @ metric


def calibrated(head: Head, logits: Float[Tensor, "n c"]) -> Float[Tensor, "n c"]:
    """Logits divided by the head's temperature, if it has one."""
    return logits if head.temperature is None else logits / head.temperature


def mix(logits: Sequence[Float[Tensor, "n c"]]) -> Float[Tensor, "n c"]:
    """Logits of the mean of several predictions' probabilities; those of a single one as they are."""
    if len(logits) == 1:
        return logits[0]
    return torch.logsumexp(torch.stack(list(logits)).log_softmax(-1), dim=0) - math.log(len(logits))


def _scores(head: Head, compared: Float[Tensor, "n k"], draw: int) -> Float[Tensor, "n c"]:
    return torch.addmm(head.shift, compared, head.weights[draw])


def _compare(
    head: Head, kernel: Kernel, model: Any, features: Float[Tensor, "n d"], draw: int, onnx: bool = False
) -> Float[Tensor, "n k"]:
    """What the head's matrices are multiplied by."""
    if head.frequencies is not None and head.phases is not None:
        return _waves(features, head.frequencies[draw], head.phases)
    if head.anchors is None:
        return features
    return (kernel.compare_in_onnx if onnx else kernel.compare)(model, features, head.anchors)


def _waves(features: Tensor, frequencies: Tensor, phases: Tensor) -> Float[Tensor, "n D"]:
    """cos(ωx + b); the factor √(2/D) of Eq. 7 is part of the head's matrices."""
    return torch.addmm(phases, features, frequencies.mT).cos_()
