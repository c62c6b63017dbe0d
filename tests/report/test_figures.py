"""The curves against plain loops; the files against themselves."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from kcl.core.metrics import AccuracyMatrix
from kcl.errors import KclError
from kcl.report import figures
from kcl.report.figures import average_accuracy_curve, task_curve
from kcl.report.groups import group_runs


def joint_run(make_run, seed: int = 0) -> dict:
    """Multi-task training: tested once, at the end."""
    rows = [[None] * 3, [None] * 3, [80.0, 81.0, 82.0 + seed]]
    return make_run(seed, method="multi-task", accuracy_matrix=rows, **AccuracyMatrix.from_lists(rows).summary())


def test_average_accuracy_curve_is_the_metric_after_each_task(make_run) -> None:
    runs = [make_run(seed, drop=3.0 + seed) for seed in range(4)]
    (group,) = group_runs(runs)
    curve = average_accuracy_curve(group)
    for t in range(3):
        values = [AccuracyMatrix.from_lists(run["accuracy_matrix"]).average_accuracy_after(t) for run in runs]
        assert curve.mean[t] == pytest.approx(np.mean(values))
        assert curve.band[t] == pytest.approx(np.std(values, ddof=1))


def test_task_curve_is_a_column_from_the_diagonal_on(make_run) -> None:
    (group,) = group_runs([make_run(0), make_run(2)])
    curve = task_curve(group, 1)
    assert curve.mean.tolist() == [91.0, 90.0]
    assert curve.band == pytest.approx(np.full(2, np.sqrt(2)))
    (single,) = group_runs([make_run()])
    assert task_curve(single, 0).band.tolist() == [0.0, 0.0, 0.0]


def test_the_same_records_give_the_same_bytes(make_run, tmp_path: Path) -> None:
    runs = [make_run(seed) for seed in range(2)] + [make_run(method="ewc", drop=9.0), joint_run(make_run)]
    first = figures.save(figures.overview(runs), tmp_path / "first.v1", ("svg", "png", "pdf"))
    second = figures.save(figures.overview(runs), tmp_path / "second", ("svg", "png", "pdf"))
    assert [path.name for path in first] == ["first.v1.svg", "first.v1.png", "first.v1.pdf"]
    for one, other in zip(first, second, strict=True):
        assert one.read_bytes() == other.read_bytes()
    svg = first[0].read_text()
    assert "<dc:date>" not in svg
    assert "Matplotlib" not in svg


def test_the_overview_has_a_panel_for_each_method_with_a_history(make_run) -> None:
    runs = [make_run(0), make_run(1), make_run(method="ewc"), joint_run(make_run), joint_run(make_run, 1)]
    assert [group.has_history for group in group_runs(runs)] == [True, True, False]
    axes = figures.overview(runs).axes
    assert [panel.get_title("left") for panel in axes[1:]] == ["KCL (vrf)", "EWC"]
    assert [line.get_label() for line in axes[0].lines] == ["KCL (vrf)", "EWC", "multi-task"]
    # Three tasks, where five would be the most; they count from 1, as on the page.
    assert [line.get_label() for line in axes[1].lines] == ["task 1", "task 2", "task 3"]


@pytest.mark.parametrize("panels", [1, 2, 3, 4, 5, 7, 9, 13])
def test_any_number_of_methods_finds_its_place(make_run, panels: int) -> None:
    runs = [make_run(method=f"method {index}") for index in range(panels)]
    figure = figures.overview(runs)
    assert len(figure.axes) == 1 + min(panels, figures.MOST_PANELS)


def test_odd_records_are_drawn(make_run) -> None:
    """One task, formulas that are none, several benchmarks, a benchmark without history, names without end."""
    runs = [
        make_run(tasks=1, method=r"$\bad{$"),
        make_run(method="long " * 20, kernel="x" * 100),
        make_run(benchmark="b"),
        joint_run(make_run) | {"benchmark": "c"},
    ]
    assert figures.render(figures.overview(runs), "svg").startswith(b"<?xml")


def test_the_users_style_comes_back_and_does_not_show(make_run) -> None:
    import matplotlib

    plain = figures.render(figures.overview([make_run()]), "svg")
    with matplotlib.rc_context({"axes.facecolor": "red", "font.size": 30}):
        assert figures.render(figures.overview([make_run()]), "svg") == plain
        assert matplotlib.rcParams["font.size"] == 30


def test_nothing_to_draw_is_told(make_run) -> None:
    with pytest.raises(KclError, match="every run diverged"):
        figures.overview([make_run(diverged=True)])


def test_a_format_that_fails_leaves_no_file(make_run, tmp_path: Path) -> None:
    with pytest.raises(KclError, match="xyz"):
        figures.save(figures.overview([make_run()]), tmp_path / "figure", ("svg", "xyz"))
    assert list(tmp_path.iterdir()) == []


def test_missing_matplotlib_is_told(make_run, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("matplotlib", "matplotlib.style"):  # an earlier test may have loaded either
        monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(KclError, match=r"pip install \"kernel-continual-learning\[report\]\""):
        figures.overview([make_run()])
