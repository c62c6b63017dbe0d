"""The panels of the paper's figures, in the report's style."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from kcl.paper.cell import Cell, FinishedRuns
from kcl.report import figures
from kcl.report.figures import Curve

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MEASURES = {
    "average_accuracy": "average accuracy %",
    "learning_accuracy": "just learned %",
    "forgetting": "forgetting",
}
"""Measures that a sweep can show, and their axis labels."""


def first_task_curves(axes: Axes, cell: Cell, runs: FinishedRuns) -> None:
    """Accuracy on each of the first tasks over the stream."""
    if (group := runs.group(cell)) and group.runs:
        figures.first_tasks(axes, group)
    axes.set(xlabel="tasks learned", ylabel="accuracy %")


def sweep(axes: Axes, lines: Mapping[str, Mapping[float, Cell]], runs: FinishedRuns, xlabel: str, measure: str) -> None:
    """A measure against a setting: by the name of each line, its values and their cells."""
    for index, (label, cells) in enumerate(lines.items()):
        points = {value: summary for value, cell in cells.items() if (summary := runs.summary(cell, measure))}
        if points:
            mean = np.array([summary.mean for summary in points.values()])
            band = np.array([summary.deviation or 0.0 for summary in points.values()])
            figures.draw_curve(axes, np.array(list(points)), Curve(mean, band), index, label)
    axes.set(xlabel=xlabel, ylabel=MEASURES[measure])


def intervals(axes: Axes, cells: Mapping[str, Cell], runs: FinishedRuns) -> None:
    """Average accuracy of each cell with its 95 % interval, one below the other; a dashed line marks the first."""
    for place, cell in enumerate(cells.values()):
        summary = runs.summary(cell)
        if summary is None:
            continue
        look = figures.look(0 if place == 0 else 1)
        if place == 0:
            axes.axvline(summary.mean, color=look["color"], linestyle="--", linewidth=1.0)
        axes.errorbar(summary.mean, place, xerr=summary.half_width, capsize=3.0, **look)
    axes.set_yticks(range(len(cells)), list(cells))
    axes.set_ylim(len(cells) - 0.5, -0.5)
    axes.set_xlabel("average accuracy %")


class Point(NamedTuple):
    """A cell in a scatter plot; `text` is written beside its marker, or below."""

    cell: Cell
    label: str | None = None
    look: int = 0
    hollow: bool = False
    text: str = ""
    below: bool = False


def scatter(
    axes: Axes, points: Sequence[Point], costs: Sequence[float | None], runs: FinishedRuns, xlabel: str
) -> None:
    """Average accuracy ± s.d. of each cell against its cost, on a logarithmic scale."""
    from matplotlib.ticker import LogLocator, NullFormatter

    annotated = False
    for point, cost in zip(points, costs, strict=True):
        summary = runs.summary(point.cell)
        if summary is None or cost is None:
            continue
        look = figures.look(point.look) | {"linestyle": "none"}
        look |= {"markerfacecolor": figures.PAPER} if point.hollow else {}
        axes.errorbar(cost, summary.mean, yerr=summary.deviation, capsize=2.0, label=point.label, **look)
        if point.text:
            place = (4, -9 if point.below else 4)
            axes.annotate(point.text, (cost, summary.mean), place, textcoords="offset points", fontsize=7)
            annotated = True
    axes.set(xscale="log", xlabel=xlabel, ylabel="average accuracy %")
    if annotated:
        axes.margins(x=0.1)
    # Ticks at powers of ten, and at 2 and 5 times these over a short range; a very short range is widened.
    axes.xaxis.set_minor_formatter(NullFormatter())
    low, high = axes.get_xlim()
    if high < 2 * low:
        low, high = axes.set_xlim(low / 2, 2 * high)
    if high < 40 * low:
        axes.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        axes.xaxis.set_major_formatter("{x:g}")
