"""Sums from which ridge regression is solved exactly, in any order and any portions, without stored samples.

min_W Σ_i ‖y_i − ψ_iW‖² + λ‖W‖² depends on the samples through G = Σ ψᵀψ, C = Σ ψᵀy and Σ y² alone, and all three are
sums. Adding statistics is learning, subtracting them is forgetting, and the solution (`functional.primal`) is that of
all samples at once, whatever the order.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from kcl.core.shapes import Float, Shaped


@dataclass(frozen=True)
class SecondMoment:
    """G = Σ ψᵀψ: as rows R with G = RᵀR while there are fewer than D of them, which is smaller and quicker to solve; as
    the D × D matrix from then on, of which only the upper triangle is used.
    """

    rows: Float[Tensor, "k D"] | None = None
    matrix: Float[Tensor, "D D"] | None = None

    @property
    def tensor(self) -> Float[Tensor, "k D"]:
        kept = self.matrix if self.rows is None else self.rows
        assert kept is not None  # noqa: S101 - one of the two is always there
        return kept

    @property
    def trace(self) -> float:
        """Σ ‖ψ‖²."""
        return float(self.tensor.diagonal().sum() if self.rows is None else self.tensor.square().sum())

    def dense(self) -> Float[Tensor, "D D"]:
        return self.tensor if self.rows is None else self.rows.mT @ self.rows

    def scaled(self, factor: float) -> SecondMoment:
        if self.rows is None:
            return SecondMoment(matrix=factor * self.tensor)
        return SecondMoment(rows=math.sqrt(factor) * self.rows)


def add_moments(parts: Sequence[SecondMoment]) -> SecondMoment:
    """The sum of at least one."""
    rows = [part.rows for part in parts if part.rows is not None]
    matrices = [part.matrix for part in parts if part.matrix is not None]
    dimension = parts[0].tensor.shape[1]
    joined = torch.cat(rows) if rows else parts[0].tensor[:0]
    if not matrices and len(joined) < dimension:
        return SecondMoment(rows=joined)
    if not matrices:
        return SecondMoment(matrix=joined.mT @ joined)
    # One pass over D² numbers: a lesson of a few samples costs little else.
    total = torch.addmm(matrices[0], joined.mT, joined)
    for matrix in matrices[1:]:
        total += matrix
    return SecondMoment(matrix=total)


@dataclass(frozen=True)
class Statistics:
    """What ridge regression needs of n weighted samples with features ψ (D) and targets y (c)."""

    moment: SecondMoment
    cross: Float[Tensor, "D c"]
    """C = Σ ψᵀy."""
    sums: Float[Tensor, " c"]
    """Σ y: how many samples each class has, where targets are one-hot."""
    squares: Float[Tensor, " c"]
    """Σ y²."""
    count: float
    """n: the sum of the sample weights."""

    @property
    def targets(self) -> int:
        return self.cross.shape[1]

    def placed(self, places: Sequence[int], targets: int) -> Statistics:
        """The same samples with target j at `places[j]` of a longer list. Targets that share a place are added up, as
        one-hot targets are when classes are joined.
        """
        index = torch.tensor(list(places), dtype=torch.int64, device=self.cross.device)

        return self._by_target(lambda part: part.new_zeros(*part.shape[:-1], targets).index_add_(-1, index, part))

    def columns(self, kept: Sequence[int]) -> Statistics:
        """Without the targets that are not among `kept`, of which all samples are gone."""
        index = torch.tensor(list(kept), dtype=torch.int64, device=self.cross.device)
        return self._by_target(lambda part: part.index_select(-1, index))

    def scaled(self, factor: float) -> Statistics:
        """As if every sample had been learned `factor` times."""
        scaled = self._by_target(lambda part: factor * part)
        return replace(scaled, moment=self.moment.scaled(factor), count=factor * self.count)

    def _by_target(self, change: Callable[[Tensor], Tensor]) -> Statistics:
        """With what depends on the targets changed."""
        return replace(self, cross=change(self.cross), sums=change(self.sums), squares=change(self.squares))


def of_samples(
    features: Float[Tensor, "n D"], targets: Shaped[Tensor, "n c"], weights: Float[Tensor, " n"] | None = None
) -> Statistics:
    """The statistics of some samples, in float64. A weight counts a sample that many times."""
    features, targets = features.double(), targets.double()
    weighted, rows, count = targets, features, float(len(features))
    if weights is not None:
        weighted, rows = weights[:, None] * targets, weights.sqrt()[:, None] * features
        count = float(weights.sum())
    moment = add_moments([SecondMoment(rows=rows)])
    return Statistics(moment, features.mT @ weighted, weighted.sum(0), (weighted * targets).sum(0), count)


def add(parts: Sequence[Statistics], moment: SecondMoment | None = None) -> Statistics:
    """The statistics of all samples together. Parts with fewer targets have the first ones. `moment`: the sum of the
    second moments, where the caller keeps it.
    """
    targets = max(part.targets for part in parts)
    parts = [part if part.targets == targets else part.placed(range(part.targets), targets) for part in parts]
    cross, sums, squares = (_total([getattr(part, name) for part in parts]) for name in ("cross", "sums", "squares"))
    moment = add_moments([part.moment for part in parts]) if moment is None else moment
    return Statistics(moment, cross, sums, squares, math.fsum(part.count for part in parts))


def add_placed(
    parts: Sequence[tuple[Statistics, Sequence[int]]], targets: int, moment: SecondMoment | None = None
) -> Statistics:
    """The same with the targets of every part at places of their own among `targets`, as `Statistics.placed` has them,
    but without a widened copy of each part: there may be thousands.
    """
    first = parts[0][0].cross
    cross, sums, squares = first.new_zeros(len(first), targets), first.new_zeros(targets), first.new_zeros(targets)
    for part, places in parts:
        index = torch.tensor(list(places), dtype=torch.int64, device=first.device)
        for total, own in ((cross, part.cross), (sums, part.sums), (squares, part.squares)):
            total.index_add_(-1, index, own)
    moment = add_moments([part.moment for part, _ in parts]) if moment is None else moment
    return Statistics(moment, cross, sums, squares, math.fsum(part.count for part, _ in parts))


def subtract(whole: Statistics, part: Statistics) -> Statistics:
    """The statistics without some of the samples, which the caller knows to be among them."""
    return Statistics(
        SecondMoment(matrix=whole.moment.dense() - part.moment.dense()),
        whole.cross - part.cross,
        whole.sums - part.sums,
        whole.squares - part.squares,
        whole.count - part.count,
    )


class TargetScale(NamedTuple):
    """Mean and deviation of targets, whose last one is 1 for every sample: its C is Σψ and its sum n. With them the
    sums of other targets become those of targets with mean zero and variance one, exactly and whenever it is needed.
    """

    mean: Float[Tensor, " c"]
    deviation: Float[Tensor, " c"]

    @classmethod
    def of(cls, whole: Statistics) -> TargetScale:
        mean = whole.sums[:-1] / whole.sums[-1]
        variance = whole.squares[:-1] / whole.sums[-1] - mean.square()
        least = torch.finfo(variance.dtype).eps * whole.squares[:-1] / whole.sums[-1]  # what rounding leaves of zero
        return cls(mean, variance.where(variance > least, 1.0).sqrt())

    def apply(self, part: Statistics) -> Statistics:
        """The sums of scaled targets, without the constant one."""
        count = part.sums[-1]
        squares = part.squares[:-1] - 2.0 * self.mean * part.sums[:-1] + count * self.mean.square()
        return Statistics(
            part.moment,
            (part.cross[:, :-1] - part.cross[:, -1:] * self.mean) / self.deviation,
            (part.sums[:-1] - count * self.mean) / self.deviation,
            squares.clamp_min(0.0) / self.deviation.square(),
            part.count,
        )


def _total(tensors: Sequence[Tensor]) -> Tensor:
    total = tensors[0].clone()
    for tensor in tensors[1:]:
        total += tensor
    return total
