"""The accuracy matrix of a group as an HTML table whose cells are shaded by their value."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

import numpy as np

from kcl.report.groups import Group
from kcl.report.tables import number

_MANY_TASKS = 12  # from here on the cells are set smaller


def shading_range(groups: Sequence[Group]) -> tuple[float, float]:
    """One scale for all matrices shown together: the range on learned tasks, widened to whole tens.

    Tasks not yet learned are at chance, and would leave no contrast for the others.
    """
    values = np.concatenate([group.matrices()[:, *np.tril_indices(group.tasks)].ravel() for group in groups])
    values = values[~np.isnan(values)]
    if values.size == 0:
        return 0.0, 100.0
    low = math.floor(values.min() / 10) * 10
    return float(low), float(max(low + 10, math.ceil(values.max() / 10) * 10))


def heatmap(group: Group, low: float, high: float) -> str:
    """Mean over seeds of a[t, i], one row for each task after which anything was evaluated."""
    mean = group.matrices().mean(axis=0)
    head = "".join(f'<th scope="col">{task}</th>' for task in range(group.tasks))
    body = "".join(
        f'<tr><th scope="row">after task {learned}</th>{"".join(_cell(value, low, high) for value in row)}</tr>'
        for learned, row in enumerate(mean.tolist())
        if not all(map(math.isnan, row))
    )
    return (
        f'<table class="heat{" many" if group.tasks > _MANY_TASKS else ""}"><caption>{escape(group.label)}</caption>'
        f'<thead><tr><th scope="col">accuracy on task</th>{head}</tr></thead><tbody>{body}</tbody></table>'
    )


def _cell(value: float, low: float, high: float) -> str:
    if math.isnan(value):
        return '<td class="none">·</td>'
    level = max(0.0, (value - low) / (high - low))
    return f'<td style="--level:{level:.2f}">{number(value, 1)}</td>'
