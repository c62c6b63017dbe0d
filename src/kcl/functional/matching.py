"""Targets with which a few samples have the class means of many (not in the paper).

A coreset says little about the mean of a class, which all samples of its task determine. Weights w_i of the coreset's
samples with Σ_i w_i x_i ≈ the mean of all of them are found once, while all samples are at hand. As the network changes
the weights stay and the features x_i are taken anew, so that the mean moves with them and needs no other storage. This
is herding (Welling, "Herding dynamical weights to learn", 2009) in closed form.
"""

from __future__ import annotations

import torch
from torch import Tensor

from kcl.core.shapes import Float

SHARE = 0.1
"""Ridge strength, relative to the mean eigenvalue of the coreset's scatter. It was set by a prototype
(docs/class-incremental.md).
"""


def matched_targets(
    features: Float[Tensor, "m d"], targets: Float[Tensor, "m c"], means: Float[Tensor, "c d"]
) -> Float[Tensor, "m c"]:
    """Ỹ near one-hot targets Y with Ỹᵀx / n_c ≈ `means`, n_c the samples of each class: Ỹ = Y + n_c B, where B is the
    ridge solution of BᵀX̃ = `means` − Yᵀx / n_c for centred features X̃. The columns of B add up to zero, so that those
    of Ỹ add up to n_c. Nothing is raised where features are not finite: then neither are the targets.
    """
    features, targets = features.double(), targets.double()
    counts, centred = targets.sum(0), features - features.mean(0)
    missing = means.double() - (targets.mT @ features) / counts[:, None]
    gram = centred @ centred.mT
    # Equal samples have no scatter: nothing can be matched, and B is zero.
    strength = (SHARE * gram.diagonal().sum() / features.shape[1]).clamp_min(torch.finfo(gram.dtype).tiny)
    identity = torch.eye(len(gram), dtype=gram.dtype, device=gram.device)
    weights = torch.linalg.solve_ex(gram + strength * identity, centred @ missing.mT).result
    return (targets + counts * (weights - weights.mean(0))).float()
