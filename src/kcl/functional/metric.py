"""A metric of features that counts less what varies within classes (not in the paper).

Ridge regression penalises ‖w‖² (Eq. 1), as if every direction of the features told classes apart equally well. With a
metric M it acts on xM, which penalises wᵀM⁻²w in its place. M⁻² mixes the identity with the scatter of samples about
the means of their classes: a shrunk estimate as of linear discriminant analysis (Friedman, "Regularized discriminant
analysis", 1989). A few samples of a class say little about it; those of all classes together say more.
"""

from __future__ import annotations

import torch
from torch import Tensor

from kcl.cuda.precision import inner
from kcl.shapes import Float


def scatter_within(features: Float[Tensor, "m d"], targets: Float[Tensor, "m c"]) -> Float[Tensor, "d d"]:
    """Σ_i (x_i − μ_c(i))(x_i − μ_c(i))ᵀ, μ_c the mean of class c; targets are one-hot."""
    counts = targets.sum(0).clamp_min(1.0)
    deviations = features - targets @ ((targets.mT @ features) / counts[:, None])
    return inner(deviations.mT, deviations.mT)


def metric_of(scatter: Float[Tensor, "*s d d"], share: float) -> Float[Tensor, "*s d d"]:
    """M = ((1 − share) I + share · S)^(−1/2), S the scatter scaled to a mean eigenvalue of one; the identity where
    nothing varies.
    """
    identity = torch.eye(scatter.shape[-1], dtype=scatter.dtype, device=scatter.device)
    mean = scatter.diagonal(dim1=-2, dim2=-1).mean(-1)[..., None, None]
    scaled = torch.where(mean > 0.0, scatter / mean, identity)
    values, vectors = torch.linalg.eigh((1.0 - share) * identity + share * scaled)
    return (vectors * values.clamp_min(1e-12).rsqrt()[..., None, :]) @ vectors.mT
