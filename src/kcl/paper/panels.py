"""The panels of the paper's figures in the report's style, and the figure that puts them side by side."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from kcl.paper.cell import Cell
from kcl.paper.finished_runs import FinishedRuns
from kcl.report import figures
from kcl.report.figures import Curve

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Panel = tuple[str, Callable[["Axes"], None]]
"""A title, and the function that draws the panel."""

MEASURES = {
    "average_accuracy": "average accuracy %",
    "learning_accuracy": "just learned %",
    "forgetting": "forgetting",
}
"""Measures that a sweep can show, and their axis labels."""


def side_by_side(panels: Sequence[Panel], miniature: bool, width: float, columns: int) -> Figure:
    """Panels side by side, at most `columns` in a row, with one legend below if it is the same for all."""
    columns = min(columns, len(panels))
    lines = -(-len(panels) // columns)
    with figures.style():
        from matplotlib.figure import Figure

        figure = Figure(figsize=(width * columns, 0.5 + 3.1 * lines), layout="constrained")
        if miniature:
            figure.suptitle("In miniature, on scikit-learn's digits: not the paper's experiment", fontweight="bold")
        grid = list(figure.subplots(lines, columns, squeeze=False).flat)
        for axes, (title, draw) in zip(grid, panels, strict=False):
            draw(axes)
            axes.set_title(title, loc="left")
            if not axes.has_data():
                axes.text(0.5, 0.5, "no finished runs", ha="center", transform=axes.transAxes)
        for axes in grid[len(panels) :]:
            axes.set_axis_off()
        _legends(figure, grid[: len(panels)])
        figures.settle_layout(figure)
    return figure


def _legends(figure: Figure, grid: Sequence[Axes]) -> None:
    legends = [axes.get_legend_handles_labels() for axes in grid]
    longest = max(legends, key=lambda legend: len(legend[1]))
    if all(set(labels) <= set(longest[1]) for _, labels in legends):  # a panel may lack runs
        if len(longest[1]) > 1:
            figure.legend(*longest, loc="outside lower center", ncols=min(4, len(longest[1])), fontsize=8)
        return
    for axes, (handles, labels) in zip(grid, legends, strict=True):
        axes.legend(handles, labels, loc="upper center", bbox_to_anchor=(0.5, -0.18), fontsize=7.5)


def accuracy_curves(axes: Axes, cells: Sequence[Cell], runs: FinishedRuns, rows: Sequence[str] = ()) -> None:
    """Average accuracy over the tasks seen, one curve per cell (Eq. 12).

    `rows` is the order of the colours, for panels that share them.
    """
    looks = list(rows or [cell.row for cell in cells])
    groups = [group for cell in cells if (group := runs.group(cell)) and group.runs]
    figures.average_accuracy(axes, groups, [looks.index(group.label) for group in groups])


def first_tasks(axes: Axes, cell: Cell, runs: FinishedRuns) -> None:
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
            figures.draw(axes, np.array(list(points)), Curve(mean, band), index, label)
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
