"""The paper's figures in the report's style: curves over the stream, and accuracy against a setting."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

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


def panels(given: Sequence[Panel], found: Found) -> Figure:
    """Panels side by side, at most four in a row, with one legend below where it is the same for all."""
    columns = min(4, len(given))
    lines = -(-len(given) // columns)
    with figures.style():
        from matplotlib.figure import Figure

        figure = Figure(figsize=(3.6 * columns, 0.5 + 3.1 * lines), layout="constrained")
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


def courses(cells: Sequence[Cell], found: Found) -> Callable[[Axes], None]:
    """Average accuracy over the tasks seen, one curve per cell (Eq. 12)."""

    def draw(axes: Axes) -> None:
        known = {look: group for look, cell in enumerate(cells) if (group := named(cell, found)) is not None}
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
    lines: Sequence[tuple[str, Sequence[tuple[float, Cell]]]], found: Found, xlabel: str
) -> Callable[[Axes], None]:
    """Average accuracy against a setting: a name and (value, cell) pairs for every line."""

    def draw(axes: Axes) -> None:
        drawn = []
        for index, (label, points) in enumerate(lines):
            known = [(value, group) for value, cell in points if (group := named(cell, found)) is not None]
            summaries = [group.summary("average_accuracy") for _, group in known]
            if not known or any(summary is None for summary in summaries):
                continue
            mean = np.array([summary.mean for summary in summaries if summary])
            band = np.array([summary.deviation or 0.0 for summary in summaries if summary])
            figures.draw(axes, np.array([value for value, _ in known]), Curve(mean, band), index, label)
            drawn.append(label)
        axes.set(xlabel=xlabel, ylabel="average accuracy %")
        _say_if_empty(axes, drawn)

    return draw


def _say_if_empty(axes: Axes, drawn: Sequence[object]) -> None:
    if not drawn:
        axes.text(0.5, 0.5, "no finished runs", ha="center", transform=axes.transAxes)
