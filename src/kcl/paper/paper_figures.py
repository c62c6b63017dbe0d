"""The paper's figures in the report's style: curves over the stream, and accuracy against a setting."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from kcl.paper.cell import Cell
from kcl.paper.item import Found
from kcl.report import figures
from kcl.report.curves import Curve
from kcl.report.groups import Group

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Panel = tuple[str, Callable[["Axes"], None]]
"""A title, and what draws the panel."""

MEASURES = {
    "average_accuracy": "average accuracy %",
    "learning_accuracy": "just learned %",
    "forgetting": "forgetting",
}
"""What a sweep can be drawn of, and what its axis is called."""


def panels(given: Sequence[Panel], found: Found, width: float = 3.6, columns: int = 4) -> Figure:
    """Panels side by side, at most so many in a row, with one legend below where it is the same for all."""
    columns = min(columns, len(given))
    lines = -(-len(given) // columns)
    with figures.style():
        from matplotlib.figure import Figure

        figure = Figure(figsize=(width * columns, 0.5 + 3.1 * lines), layout="constrained")
        if found.scale.note:
            figure.suptitle("In miniature, on scikit-learn's digits: not the paper's experiment", fontweight="bold")
        grid = figure.subplots(lines, columns, squeeze=False).flatten()
        for axes, (title, draw) in zip(grid, given, strict=False):
            draw(axes)
            axes.set_title(title, loc="left")
        for axes in grid[len(given) :]:
            axes.set_axis_off()
        _legends(figure, list(grid[: len(given)]))
        figure.draw_without_rendering()
        figure.set_layout_engine("none")
    return figure


def _legends(figure: Figure, grid: Sequence[Axes]) -> None:
    known = [axes.get_legend_handles_labels() for axes in grid]
    longest = max(known, key=lambda own: len(own[1]))
    if all(set(labels) <= set(longest[1]) for _, labels in known):  # a panel may want for runs
        if len(longest[1]) > 1:
            figure.legend(*longest, loc="outside lower center", ncols=min(4, len(longest[1])), fontsize=8)
        return
    for axes, (handles, labels) in zip(grid, known, strict=True):
        axes.legend(handles, labels, loc="upper center", bbox_to_anchor=(0.5, -0.18), fontsize=7.5)


def named(cell: Cell, found: Found) -> Group | None:
    """The finished runs of a cell under the name of its row; None where there are none or all diverged."""
    group = found.group(cell)
    return None if group is None or not group.runs else dataclasses.replace(group, label=cell.row)


def courses(cells: Sequence[Cell], found: Found, rows: Sequence[str] = ()) -> Callable[[Axes], None]:
    """Average accuracy over the tasks seen, one curve per cell (Eq. 12); `rows` in the order of their colours, where
    several panels share them.
    """
    looks = {row: look for look, row in enumerate(rows or [cell.row for cell in cells])}

    def draw(axes: Axes) -> None:
        known = {looks[cell.row]: group for cell in cells if (group := named(cell, found)) is not None}
        figures.average_accuracy(axes, list(known.values()), list(known))
        _say_if_empty(axes, list(known))

    return draw


def first_tasks(cell: Cell, found: Found) -> Callable[[Axes], None]:
    """Accuracy on each of the first tasks over the stream."""

    def draw(axes: Axes) -> None:
        group = named(cell, found)
        if group is not None:
            figures.first_tasks(axes, group)
        axes.set(xlabel="tasks learned", ylabel="accuracy %")
        _say_if_empty(axes, [] if group is None else [group])

    return draw


def sweep(
    lines: Sequence[tuple[str, Sequence[tuple[float, Cell]]]],
    found: Found,
    xlabel: str,
    measure: str = "average_accuracy",
) -> Callable[[Axes], None]:
    """Average accuracy, or another measure, against a setting: a name and (value, cell) pairs for every line."""

    def draw(axes: Axes) -> None:
        drawn = []
        for index, (label, points) in enumerate(lines):
            known = [(value, group) for value, cell in points if (group := named(cell, found)) is not None]
            summaries = [group.summary(measure) for _, group in known]
            if not known or any(summary is None for summary in summaries):
                continue
            mean = np.array([summary.mean for summary in summaries if summary])
            band = np.array([summary.deviation or 0.0 for summary in summaries if summary])
            figures.draw(axes, np.array([value for value, _ in known]), Curve(mean, band), index, label)
            drawn.append(label)
        axes.set(xlabel=xlabel, ylabel=MEASURES[measure])
        _say_if_empty(axes, drawn)

    return draw


def intervals(cells: Mapping[str, Cell], found: Found) -> Callable[[Axes], None]:
    """Average accuracy of each cell with its 95 % interval, one below the other; the first one's also as a line."""

    def draw(axes: Axes) -> None:
        drawn = []
        for place, cell in enumerate(cells.values()):
            group = named(cell, found)
            summary = group.summary("average_accuracy") if group else None
            if summary is None:
                continue
            own = figures.look(0 if place == 0 else 1)
            if place == 0:
                axes.axvline(summary.mean, color=own["color"], linestyle="--", linewidth=1.0)
            axes.errorbar(summary.mean, place, xerr=summary.half_width, capsize=3.0, **own)
            drawn.append(cell.row)
        axes.set_yticks(range(len(cells)), list(cells))
        axes.set_ylim(len(cells) - 0.5, -0.5)
        axes.set_xlabel("average accuracy %")
        _say_if_empty(axes, drawn)

    return draw


class Point(NamedTuple):
    """A cell in a plane: which look it has, whether its marker is hollow, what is written beside it, and where."""

    cell: Cell
    label: str | None
    look: int
    hollow: bool = False
    beside: str = ""
    below: bool = False


def scatter(
    points: Sequence[Point], found: Found, across: Callable[[Cell], float | None], xlabel: str
) -> Callable[[Axes], None]:
    """Average accuracy ± s.d. of each cell against what it costs, on a logarithmic scale."""

    def draw(axes: Axes) -> None:
        drawn = []
        for point in points:
            group, cost = named(point.cell, found), across(point.cell)
            summary = group.summary("average_accuracy") if group else None
            if summary is None or cost is None:
                continue
            own = figures.look(point.look) | {"linestyle": "none"}
            own |= {"markerfacecolor": figures.PAPER} if point.hollow else {}
            axes.errorbar(cost, summary.mean, yerr=summary.deviation, capsize=2.0, label=point.label, **own)
            if point.beside:
                place = (4, -9 if point.below else 4)
                axes.annotate(point.beside, (cost, summary.mean), place, textcoords="offset points", fontsize=7)
            drawn.append(point)
        axes.set(xscale="log", xlabel=xlabel, ylabel="average accuracy %")
        if any(point.beside for point in drawn):
            axes.margins(x=0.1)
        _log_ticks(axes)
        _say_if_empty(axes, drawn)

    return draw


def _log_ticks(axes: Axes) -> None:
    """Powers of ten, and 2 and 5 times as much where there are few; what costs almost alike stands close together."""
    from matplotlib.ticker import LogLocator, NullFormatter

    axes.xaxis.set_minor_formatter(NullFormatter())
    low, high = axes.get_xlim()
    if high < 2 * low:
        low, high = axes.set_xlim(low / 2, 2 * high)
    if high < 40 * low:
        axes.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        axes.xaxis.set_major_formatter("{x:g}")


def _say_if_empty(axes: Axes, drawn: Sequence[object]) -> None:
    if not drawn:
        axes.text(0.5, 0.5, "no finished runs", ha="center", transform=axes.transAxes)
