"""Figures over seeds, in one style: Okabe–Ito colours, which colour-blind readers can tell apart, and markers.

matplotlib is imported only when a figure is drawn: tables and runs do not need it.
"""

from __future__ import annotations

import importlib.util
import io
import itertools
import math
import textwrap
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from kcl.core.files import write_whole
from kcl.core.packages import load_package
from kcl.errors import KclError
from kcl.report.groups import Record, SeedGroup, group_runs

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure, SubFigure

# Distinct tones, so that a page can replace them by its own in the SVG.
INK, LINE, PAPER = "#1f2328", "#d1d9e0", "#ffffff"
FIRST_TASKS = 5
MOST_PANELS = 12
_LEGEND_WIDTH = 26
# Okabe and Ito, "Color Universal Design", 2008; their black is the ink, their yellow too faint on paper.
_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", INK)
_MARKERS = ("o", "s", "^", "D", "v", "P", "X")
_LINES = ("-", "--", ":", "-.")
_STYLE = {
    "svg.hashsalt": "kcl",
    "svg.fonttype": "path",
    "font.size": 9,
    "axes.titlesize": 9.5,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": LINE,
    "grid.linewidth": 0.6,
    "legend.frameon": False,
    "lines.linewidth": 1.6,
    "lines.markersize": 4.5,
    **dict.fromkeys(("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color"), INK),
    **dict.fromkeys(("figure.facecolor", "axes.facecolor", "savefig.facecolor"), PAPER),
}
# Nothing that changes with the date or the version enters the files.
_METADATA: dict[str, dict[str, None]] = {
    "svg": {"Creator": None, "Date": None, "Format": None, "Type": None},
    "png": {"Software": None},
    "pdf": {"Creator": None, "Producer": None, "CreationDate": None},
}


Panel = tuple[str, Callable[["Axes"], None]]
"""A title, and the function that draws the panel."""


class Curve(NamedTuple):
    """Mean over seeds, and its band: one sample standard deviation to each side, zero for a single seed."""

    mean: npt.NDArray[np.float64]
    band: npt.NDArray[np.float64]


def average_accuracy_curve(group: SeedGroup) -> Curve:
    """Average accuracy over the tasks seen after task t, A_t (Eq. 12), for every t."""
    matrices = group.matrices()
    return _over_seeds(np.stack([matrices[:, t, : t + 1].mean(axis=1) for t in range(group.tasks)], axis=1))


def task_curve(group: SeedGroup, task: int) -> Curve:
    """Accuracy on one task after each task from itself on: column i of the matrix below the diagonal."""
    return _over_seeds(group.matrices()[:, task:, task])


def _over_seeds(values: npt.NDArray[np.float64]) -> Curve:
    mean = values.mean(axis=0)
    return Curve(mean, values.std(axis=0, ddof=1) if len(values) > 1 else np.zeros_like(mean))


def overview(records: Sequence[Record]) -> Figure:
    """Per benchmark: average accuracy after each task (left), and accuracy of the first tasks (right)."""
    groups = [group for group in group_runs(records) if group.runs]
    if not groups:
        raise KclError("there is nothing to draw: every run diverged")
    members = {name: list(shown) for name, shown in itertools.groupby(groups, lambda group: group.benchmark)}
    heights = [_height(shown) for shown in members.values()]
    with style():
        from matplotlib.figure import Figure

        figure = Figure(figsize=(10, sum(heights)), layout="constrained")
        parts = figure.subfigures(len(members), 1, height_ratios=heights, squeeze=False)[:, 0]
        for part, (name, shown) in zip(parts, members.items(), strict=True):
            _draw_benchmark(part, name, shown)
        _settle_layout(figure)
    return figure


def side_by_side(panels: Sequence[Panel], width: float, columns: int, title: str = "") -> Figure:
    """Panels side by side, at most `columns` in a row, with one legend below if it is the same for all."""
    columns = min(columns, len(panels))
    lines = math.ceil(len(panels) / columns)
    with style():
        from matplotlib.figure import Figure

        figure = Figure(figsize=(width * columns, 0.5 + 3.1 * lines), layout="constrained")
        if title:
            figure.suptitle(title, fontweight="bold")
        grid = list(figure.subplots(lines, columns, squeeze=False).flat)
        for axes, (name, draw_panel) in zip(grid, panels, strict=False):
            draw_panel(axes)
            axes.set_title(name, loc="left")
            if not axes.has_data():
                axes.text(0.5, 0.5, "no finished runs", ha="center", transform=axes.transAxes)
        for axes in grid[len(panels) :]:
            axes.set_axis_off()
        _draw_legends(figure, grid[: len(panels)])
        _settle_layout(figure)
    return figure


def _draw_legends(figure: Figure, grid: Sequence[Axes]) -> None:
    legends = [axes.get_legend_handles_labels() for axes in grid]
    longest = max(legends, key=lambda legend: len(legend[1]))
    if all(set(labels) <= set(longest[1]) for _, labels in legends):  # a panel may lack runs
        if len(longest[1]) > 1:
            figure.legend(*longest, loc="outside lower center", ncols=min(4, len(longest[1])), fontsize=8)
        return
    for axes, (handles, labels) in zip(grid, legends, strict=True):
        axes.legend(handles, labels, loc="upper center", bbox_to_anchor=(0.5, -0.18), fontsize=7.5)


def _settle_layout(figure: Figure) -> None:
    """Lay it out once, so that every format shows the same picture."""
    figure.draw_without_rendering()
    figure.set_layout_engine("none")


def average_accuracy(axes: Axes, groups: Sequence[SeedGroup], looks: Sequence[int] | None = None) -> None:
    """Average accuracy over the tasks seen, after each task (Eq. 12), one curve per group; `looks`: styles."""
    for index, group in zip(looks or range(len(groups)), groups, strict=True):
        curve, seen = average_accuracy_curve(group), np.arange(1, group.tasks + 1)
        label = _wrapped(group.label, _LEGEND_WIDTH)
        if not group.has_history:  # multi-task training is measured once, at the end
            axes.axhline(float(curve.mean[-1]), label=label, **look(index, marker=False))
            continue
        draw_curve(axes, seen, curve, index, label)
    axes.set(xlabel="tasks learned", ylabel="average accuracy %")
    axes.set_title("average over the tasks seen, mean ± s.d. over seeds", loc="left")
    _whole_ticks(axes)


def first_tasks(axes: Axes, group: SeedGroup, title_width: int = 60) -> None:
    """Accuracy on each of the first tasks, from when it is learned to the end; the title is wrapped at a width."""
    for task in range(min(FIRST_TASKS, group.tasks)):
        seen = np.arange(task + 1, group.tasks + 1)
        draw_curve(axes, seen, task_curve(group, task), task, f"task {task + 1}")
    axes.set_title(_wrapped(group.label, title_width), loc="left")
    _whole_ticks(axes)


def render(figure: Figure, kind: str) -> bytes:
    """The figure as the bytes of an svg, png or pdf file, the same for the same records."""
    if kind not in _METADATA:
        raise KclError(f"figures are written as {', '.join(_METADATA)}, not as {kind!r}")
    buffer = io.BytesIO()
    with style():
        figure.savefig(buffer, format=kind, dpi=200, metadata=_METADATA[kind])
    return buffer.getvalue()


def save(figure: Figure, path_without_suffix: str | Path, formats: Sequence[str] = ("svg", "png")) -> list[Path]:
    """Writes `<path>.<format>` for each format, each file whole or not at all; returns the paths."""
    contents = {Path(f"{path_without_suffix}.{kind}"): render(figure, kind) for kind in formats}
    for path, content in contents.items():
        write_whole(path, content)
    return list(contents)


def _height(groups: Sequence[SeedGroup]) -> float:
    """In inches: room for the legend on the left and for the panels on the right."""
    lines = sum(_wrapped(group.label, _LEGEND_WIDTH).count("\n") + 1 for group in groups)
    rows, _ = _grid(len(_with_history(groups)))
    return max(3.1 + 0.1 * lines, 0.8 + 1.6 * rows)


def _draw_benchmark(part: SubFigure, name: str, groups: list[SeedGroup]) -> None:
    panels = _with_history(groups)
    grid = _grid(len(panels))
    left_out = f" (on the right, the first {MOST_PANELS} methods)" if len(groups) > len(panels) == MOST_PANELS else ""
    part.suptitle(_wrapped(name + left_out, 100), fontweight="bold", x=0.01, ha="left")
    left, right = part.subfigures(1, 2, width_ratios=(0.42, 0.58), squeeze=False)[0] if panels else (part, None)
    axes = left.subplots()
    average_accuracy(axes, groups)
    left.legend(*axes.get_legend_handles_labels(), loc="outside lower center", ncols=2)
    if right is None:
        return
    cells = right.subplots(*grid, sharex=True, sharey=True, squeeze=False)
    for cell, group in zip(cells.flat, panels, strict=False):
        first_tasks(cell, group, title_width=66 // grid[1])
    for cell in cells.flat[len(panels) :]:
        cell.remove()
    for lowest in cells.flat[max(0, len(panels) - grid[1]) : len(panels)]:  # one in each column
        lowest.set_xlabel("tasks learned")
        lowest.tick_params(labelbottom=True)
    right.supylabel("accuracy on a task %", fontsize=9)
    right.legend(*cells.flat[0].get_legend_handles_labels(), loc="outside lower center", ncols=FIRST_TASKS)


def draw_curve(axes: Axes, seen: npt.NDArray[np.int_], curve: Curve, index: int, label: str) -> None:
    style, step = look(index), max(1, len(seen) // 6)
    axes.plot(seen, curve.mean, label=label, markevery=(index % step, step), **style)
    axes.fill_between(seen, curve.mean - curve.band, curve.mean + curve.band, color=style["color"], alpha=0.18, lw=0)


def _whole_ticks(axes: Axes) -> None:
    from matplotlib.ticker import MaxNLocator

    axes.xaxis.set_major_locator(MaxNLocator(nbins=6, integer=True))


def look(index: int, marker: bool = True) -> dict[str, Any]:
    """Colour, line and marker number `index`, as matplotlib takes them."""
    style = {"color": _COLOURS[index % len(_COLOURS)], "linestyle": _LINES[index % len(_LINES)]}
    return style | {"marker": _MARKERS[index % len(_MARKERS)]} if marker else style


def _with_history(groups: Sequence[SeedGroup]) -> list[SeedGroup]:
    return [group for group in groups if group.has_history][:MOST_PANELS]


def _grid(panels: int) -> tuple[int, int]:
    columns = panels if panels <= 3 else 2 if panels == 4 else 3 if panels <= 6 else 4
    return math.ceil(panels / columns) if columns else 0, columns


def _wrapped(label: str, width: int) -> str:
    """At most three lines; a dollar sign does not start a formula."""
    return textwrap.fill(label, width, max_lines=3, placeholder=" …").replace("$", r"\$")


def available() -> bool:
    """Whether matplotlib is installed."""
    return importlib.util.find_spec("matplotlib") is not None


@contextmanager
def style() -> Iterator[None]:
    """matplotlib in this file's style. The user's settings do not matter, and are restored afterwards."""
    with load_package("matplotlib.style", "report", "figures need matplotlib").context(["default", _STYLE]):
        yield
