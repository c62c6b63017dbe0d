"""Plots of a search: the best value so far over the trials, and the values against every setting."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import accumulate
from typing import TYPE_CHECKING

from kcl.report.figures import side_by_side
from kcl.tuning.search import Trial
from kcl.tuning.space import Choice, Range, Space

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def draw(space: Space, trials: Sequence[Trial]) -> Figure:
    """One panel for the progress of the search, one for each setting; the best trial is marked."""
    settings = [(dimension.name, partial(_setting, dimension=dimension, trials=trials)) for dimension in space]
    return side_by_side([("progress", partial(_progress, trials=trials)), *settings], width=3.6, columns=3)


def _progress(axes: Axes, trials: Sequence[Trial]) -> None:
    numbers, values = [trial.number for trial in trials], [trial.value or 0.0 for trial in trials]
    axes.plot(numbers, values, "o", alpha=0.6, label="trial")
    axes.step(numbers, list(accumulate(values, max)), where="post", label="best so far")
    axes.set(xlabel="trial", ylabel="accuracy % on samples held out")


def _setting(axes: Axes, dimension: Range | Choice, trials: Sequence[Trial]) -> None:
    from matplotlib.ticker import NullFormatter

    points, values = [trial.settings[dimension.name] for trial in trials], [trial.value or 0.0 for trial in trials]
    shown = points if isinstance(dimension, Range) else list(map(str, points))
    best = values.index(max(values))
    axes.scatter(shown, values, c=[trial.number for trial in trials], s=18)
    axes.plot([shown[best]], [values[best]], "*", color="#d55e00", markersize=12)
    if isinstance(dimension, Range):
        axes.set_xlim(dimension.low, dimension.high)
        axes.set_xscale("log" if dimension.log else "linear")
        axes.xaxis.set_minor_formatter(NullFormatter())
