"""Which runs belong together, and what each group is called."""

from __future__ import annotations

import numpy as np
import pytest

from kcl.errors import KclError
from kcl.report.groups import differing, group_runs, show


def test_seeds_make_one_group_in_their_order(make_run) -> None:
    (group,) = group_runs([make_run(2), make_run(0), make_run(1)])
    assert [run["seed"] for run in group.runs] == [0, 1, 2]
    assert group.label == "KCL (vrf)"
    assert group.matrices().shape == (3, 3, 3)
    assert np.isnan(group.matrices()[:, 0, 1]).all()


def test_seed_in_the_settings_makes_no_difference(make_run) -> None:
    runs = [make_run(seed, settings={"lr": 0.1, "seed": seed}) for seed in range(3)]
    assert len(group_runs(runs)) == 1


def test_labels_tell_the_settings_that_differ(make_run) -> None:
    groups = group_runs(
        [
            make_run(settings={"lr": 0.1, "dropout": 0.5}),
            make_run(settings={"lr": 0.1, "dropout": 0.2}),
            make_run(settings={"lr": 0.1}),
            make_run(method="naive-sgd", settings={"lr": 0.3}),
        ]
    )
    labels = ["KCL (vrf), dropout 0.5", "KCL (vrf), dropout 0.2", "KCL (vrf), dropout –", "naive SGD"]
    assert [group.label for group in groups] == labels


def test_long_labels_are_shortened_and_stay_distinct(make_run) -> None:
    """As where a foreign file names settings that the others lack."""
    settings = [{f"setting_{place}": value for place in range(40)} for value in range(3)]
    labels = [group.label for group in group_runs([make_run(settings=values | {"lr": 1}) for values in settings])]
    assert max(map(len, labels)) <= 120
    assert len(set(labels)) == 3
    same = [group.label for group in group_runs([make_run(settings={"x" * 200: k}) for k in range(3)])]
    assert max(map(len, same)) <= 120
    assert len(set(same)) == 3


def test_numbers_in_labels_are_rounded_and_stay_distinct(make_run) -> None:
    rates = (0.0958015722, 0.0958015723, 1e9)
    labels = [group.label for group in group_runs([make_run(settings={"lr": rate}) for rate in rates])]
    assert labels == ["KCL (vrf), lr 0.0958016", "KCL (vrf), lr 0.0958016 (2)", "KCL (vrf), lr 1e+09"]


def test_the_number_of_tasks_separates_runs(make_run) -> None:
    groups = group_runs([make_run(tasks=2), make_run(tasks=3)])
    assert [group.label for group in groups] == ["KCL (vrf), tasks 2", "KCL (vrf), tasks 3"]


def test_unknown_methods_keep_their_name_and_benchmarks_stay_together(make_run) -> None:
    runs = [make_run(method="new", benchmark=name) for name in ("b", "a")] + [make_run(method="ewc", benchmark="b")]
    assert [(group.benchmark, group.label) for group in group_runs(runs)] == [("b", "new"), ("b", "EWC"), ("a", "new")]


def test_a_repeated_run_counts_once_and_the_last_one_counts(make_run) -> None:
    (group,) = group_runs([make_run(0, seconds=1.0), make_run(1, diverged=True), make_run(0, seconds=7.0), make_run(1)])
    assert [run["seconds"] for run in group.runs] == [7.0, 11.0]
    assert group.diverged == ()


def test_diverged_runs_are_set_apart(make_run) -> None:
    (group,) = group_runs([make_run(0), make_run(1, diverged=True)])
    assert (len(group.runs), len(group.diverged)) == (1, 1)
    assert group.summary("average_accuracy").size == 1


def test_a_missing_metric_is_not_averaged_over(make_run) -> None:
    (group,) = group_runs([make_run(0), make_run(1, forgetting=None)])
    assert group.summary("forgetting") is None


def test_varied_ways_make_one_group_whether_read_or_just_made(make_run) -> None:
    runs = [make_run(0, tasks=2, ways=[3, 15]), make_run(1, tasks=3, ways=(3, 15))]
    (group,) = group_runs(runs)
    assert group.settings["ways"] == [3, 15]


def test_no_runs_are_an_error() -> None:
    with pytest.raises(KclError, match="no runs"):
        group_runs([])


def test_differing_and_show() -> None:
    assert differing([{"a": 1, "b": [1]}, {"a": 1, "b": [2]}, {"a": 1}]) == ["b"]
    assert differing([{"a": {"x": 1, "y": 2}}, {"a": {"y": 2, "x": 1}}]) == []
    assert show("l2") == "l2"
    assert show(None) == "–"
    assert show(True) == "true"
    assert show("\x1b[31m") == '"\\u001b[31m"'
    assert len(show(list(range(1000)))) == 60
