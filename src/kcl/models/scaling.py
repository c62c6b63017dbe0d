"""How a person's own numbers are scaled: one rule for every way to use a model, measured once, on the first samples.

Columns that share a unit (pixels, counts, embeddings: their ranges are alike) are centred and divided by one number, so
that a pixel that was nearly constant at first is not blown up later. Columns in different units (a table) are each
divided by their own spread. Spread is the standard deviation of the central 98 %, because one outlier must not shrink
all other values to nothing. Beyond `LIMIT` spreads, values grow with their logarithm only: a later task in other units
stays readable and finite. Samples that are still longer than `REACH` times the usual length are shortened likewise,
because a kernel whose width is the distance between the first samples sees no likeness between samples much farther
apart.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from kcl.benchmarks.task import View
from kcl.core.shapes import Float

LIMIT = 3.0
REACH = 3.0
"""Beyond this many times the root mean square length, the length of a sample is eased."""
ROWS = 2000
ALIKE = 3.0
"""Ranges are alike if the upper quartile is at most this many times the lower one."""
CENTRAL = (0.01, 0.99)
CONSTANT = 1e-9
"""A spread below this, relative to the size of the values, is rounding."""


def measured(x: Float[Tensor, "n d"], by_root_of_columns: bool = False) -> View:
    """The scaling of rows of numbers, from up to `ROWS` of them. `by_root_of_columns`: distances are to be of order
    one, however many columns there are.
    """
    x = x[:: -(-len(x) // ROWS)].double()
    low, high = torch.quantile(x, torch.tensor(CENTRAL, dtype=x.dtype), dim=0)
    central = x.clamp(low, high)
    mean, spread = central.mean(0), central.std(0, correction=0)
    # A column that is almost always zero has no central spread, but one.
    spread = torch.where(spread > CONSTANT * x.abs().amax(0), spread, x.std(0, correction=0))
    varies = spread > CONSTANT * x.abs().amax(0)
    if share_a_unit(x):
        spread = spread[varies].square().mean().sqrt().expand_as(spread)
    else:
        spread = torch.where(varies, spread, 1.0)
    factor = x.shape[1] ** 0.5 if by_root_of_columns else 1.0
    view = View(None, tuple(mean.tolist()), tuple((factor * spread).tolist()), LIMIT / factor)
    length = float(view.scale(x).square().sum(1).mean().sqrt())
    return replace(view, reach=REACH * length) if length > 0.0 else view


def share_a_unit(x: Float[Tensor, "n d"]) -> bool:
    """Whether the ranges of the columns that vary are alike."""
    ranges = (x - x.mean(0)).abs().amax(0)
    ranges = ranges[ranges > CONSTANT * x.abs().amax(0)]
    if len(ranges) == 0:
        return False
    lower, upper = torch.quantile(ranges, torch.tensor([0.25, 0.75], dtype=ranges.dtype))
    return bool(upper <= ALIKE * lower)
