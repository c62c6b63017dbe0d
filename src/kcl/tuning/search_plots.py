"""Plots of a search: the best value so far over the trials, and the values against every setting."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import TYPE_CHECKING

from kcl.report import figures
from kcl.tuning.space import Range, Space
from kcl.tuning.study import Trial

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def draw(space: Space, trials: Sequence[Trial]) -> Figure:
    """One panel for the progress of the search, one for each setting; the best trial is marked."""
    with figures.style():
        from matplotlib.figure import Figure
        from matplotlib.ticker import NullFormatter

        columns = min(3, 1 + len(space))
        rows = -(-(1 + len(space)) // columns)
        figure = Figure(figsize=(3.6 * columns, 3.0 * rows), layout="constrained")
        course, *each = figure.subplots(rows, columns, squeeze=False).flat
        numbers, values = [trial.number for trial in trials], [trial.value or 0.0 for trial in trials]
        best = max(range(len(trials)), key=lambda place: (values[place], -place))
        course.plot(numbers, values, "o", alpha=0.6, label="trial")
        course.step(numbers, list(accumulate(values, max)), where="post", label="best so far")
        course.set(xlabel="trial", ylabel="accuracy % on samples held out")
        course.legend()
        for panel, dimension in zip(each, space, strict=False):
            points = [trial.settings[dimension.name] for trial in trials]
            shown = points if isinstance(dimension, Range) else [str(value) for value in points]
            panel.scatter(shown, values, c=numbers, s=18)
            panel.plot([shown[best]], [values[best]], "*", color="#d55e00", markersize=12)
            panel.set_xlabel(dimension.name)
            if isinstance(dimension, Range):
                panel.set_xlim(dimension.low, dimension.high)
                panel.set_xscale("log" if dimension.log else "linear")
                panel.xaxis.set_minor_formatter(NullFormatter())
        for empty in each[len(space) :]:
            empty.remove()
    return figure
