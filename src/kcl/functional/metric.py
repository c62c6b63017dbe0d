"""A metric of features that gives less weight to directions that vary within classes (not in the paper).

Ridge regression penalises ‖w‖² (Eq. 1), as if every direction of the features separated classes equally well. With a
metric M it acts on xM, which penalises wᵀM⁻²w instead. M⁻² mixes the identity with the scatter of samples about the
means of their classes: a shrinkage estimate as in regularised discriminant analysis (Friedman, "Regularized
discriminant analysis", 1989). The few samples of one class say little about the scatter; those of all classes together
say more.
"""

from __future__ import annotations

import torch
from torch import Tensor

from kcl.core.shapes import Float
from kcl.ops import inner

ROUNDING = 32.0
"""A sample closer to the mean of its class than this, in units in the last place, counts as equal to it."""


def scatter_within(features: Float[Tensor, "m d"], targets: Float[Tensor, "m c"]) -> Float[Tensor, "d d"]:
    """Σ_i (x_i − μ_c(i))(x_i − μ_c(i))ᵀ, μ_c the mean of class c; targets are one-hot. Differences
    that rounding alone can cause between equal samples count as zero.
    """
    means = inner(targets.mT, features.mT) / targets.sum(0).clamp_min(1.0)[:, None]
    deviations = features - inner(targets, means.mT)
    least = ROUNDING * torch.finfo(features.dtype).eps * torch.linalg.vector_norm(features, dim=-1, keepdim=True)
    apart = torch.linalg.vector_norm(deviations, dim=-1, keepdim=True) > least
    deviations = torch.where(apart | ~torch.isfinite(least), deviations, 0.0)
    return inner(deviations.mT, deviations.mT)


def metric_of(scatter: Float[Tensor, "*s d d"], share: float) -> Float[Tensor, "*s d d"]:
    """M = ((1 − share) I + share · S)^(−1/2), S the scatter scaled to a mean eigenvalue of one; the identity where
    nothing varies. A run whose scatter is not finite gets an M that is not finite; other runs are unaffected.
    """
    identity = torch.eye(scatter.shape[-1], dtype=scatter.dtype, device=scatter.device)
    mean = scatter.diagonal(dim1=-2, dim2=-1).mean(-1)[..., None, None]
    scaled = torch.where(mean == 0.0, identity, scatter / mean)
    finite = (torch.isfinite(scaled).all(-1).all(-1)[..., None, None]) & torch.isfinite(mean)
    # One matrix that is not finite would make eigh fail for all runs.
    values, vectors = torch.linalg.eigh(torch.where(finite, scaled, identity))
    spread = (1.0 - share) + share * values.clamp_min(0.0)
    return torch.where(finite, (vectors * spread.rsqrt()[..., None, :]) @ vectors.mT, torch.nan)
