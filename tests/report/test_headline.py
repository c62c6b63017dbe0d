"""The headline table: what is compared with what, and when a best is marked."""

from __future__ import annotations

import math

import pytest

from kcl.report.groups import group_runs
from kcl.report.headline import headline, in_words
from kcl.report.published import TABLE_1, TABLE_2, TABLE_5, published
from kcl.report.results_table import markdown
from kcl.report.summary import difference_p, stands_out, student_p


def test_p_values_are_those_of_scipy() -> None:
    stats = pytest.importorskip("scipy.stats")
    for t, degrees in ((0.0, 3), (2.1, 3), (-0.5, 10), (9.0, 4), (3.0, 1), (1.7, 61)):
        assert student_p(t, degrees) == pytest.approx(2 * stats.t.sf(abs(t), degrees), abs=1e-12)
    one, other = {0: 1.0, 1: 2.5, 2: 2.0, 3: 4.0}, {0: 0.5, 1: 2.2, 2: 1.1, 3: 3.6}
    paired = stats.ttest_rel(list(one.values()), list(other.values())).pvalue
    assert difference_p(one, other) == pytest.approx(paired)
    moved = {seed + 10: value - 2 for seed, value in other.items()}
    welch = stats.ttest_ind(list(one.values()), list(moved.values()), equal_var=False)
    assert difference_p(one, moved) == pytest.approx(student_p(welch.statistic, math.floor(welch.df)))


def test_too_few_seeds_say_nothing() -> None:
    assert difference_p({0: 90.0}, {0: 10.0}) == 1.0
    assert difference_p({0: 90.0, 1: 91.0}, {5: 10.0}) == 1.0
    assert not stands_out({0: 90.0}, [])


def test_holm_takes_the_smallest_p_times_their_number() -> None:
    best = {seed: 90.0 + 0.1 * seed for seed in range(3)}
    near = {0: 88.0, 1: 89.0, 2: 88.9}
    p = difference_p(best, near)
    assert 0.05 / 2 < p < 0.05
    assert stands_out(best, [near])
    assert not stands_out(best, [near, near])


def runs_of(make_run, method: str, drop: float, seeds=range(5), **changes) -> list:
    """Made-up runs whose drop differs a little from seed to seed, so that differences have a spread."""
    return [make_run(seed, method=method, drop=drop + 0.1 * (seed % 2), **changes) for seed in seeds]


def test_the_best_is_marked_only_where_it_stands_out(make_run) -> None:
    clear = runs_of(make_run, "kcl", 1.0) + runs_of(make_run, "ewc", 20.0)
    _, rows = headline(group_runs(clear))
    assert [(label, cells[0].best) for label, cells in rows.items()] == [("KCL (vrf)", True), ("EWC", False)]
    close = runs_of(make_run, "kcl", 1.0) + runs_of(make_run, "ewc", 1.0)
    assert not any(cells[0].best for cells in headline(group_runs(close))[1].values())
    single = [make_run(), make_run(method="ewc", drop=40.0)]
    assert not any(cells[0].best for cells in headline(group_runs(single))[1].values())


def test_only_runs_of_the_same_tasks_share_a_column(make_run) -> None:
    runs = [make_run(), make_run(tasks=5), make_run(method="ewc"), make_run(train_per_task=100), make_run(ways=[3, 15])]
    columns, rows = headline(group_runs(runs))
    assert columns == [
        "permuted-digits (3 tasks)",
        "permuted-digits (5 tasks)",
        "permuted-digits (3 tasks, 100 samples per task)",
        "permuted-digits (3–15 ways)",
    ]
    assert [(label, [cell is not None for cell in cells]) for label, cells in rows.items()] == [
        ("KCL (vrf)", [True, True, True, True]),
        ("EWC", [True, False, False, False]),
    ]


def test_settings_that_differ_make_rows_of_their_own(make_run) -> None:
    runs = [make_run(settings={"lr": lr}) for lr in (0.1, 0.2)] + [make_run(method="ewc", settings={"lr": 0.3})]
    assert list(headline(group_runs(runs))[1]) == ["KCL (vrf), lr 0.1", "KCL (vrf), lr 0.2", "EWC"]


def test_published_values_are_the_papers() -> None:
    whole = {"tasks": 20}
    assert str(published("permuted-mnist", "kcl", "vrf", whole)) == "85.5 ± 0.78"
    assert str(published("split-miniimagenet", "multi-task", None, whole | {"ways": 5})) == "65.1"
    assert published("split-miniimagenet", "stable-sgd", None, whole) is None
    assert published("split-cifar100", "kcl", "rbf", whole | {"ways": 5, "class_order": "fixed"}).accuracy == 56.86
    assert published("split-cifar100", "kcl", "vrf", {"ways": [3, 15]}).accuracy == 61.0
    for other in ({"tasks": 5}, whole | {"train_per_task": 100}, whole | {"class_order": "shuffled"}, {"ways": [2, 9]}):
        assert published("split-cifar100", "kcl", "vrf", other) is None


def test_published_values_stand_beside_the_paper_s_sizes_only() -> None:
    whole = {"tasks": 20, "ways": 5}
    assert published("split-cifar100", "kcl", "vrf", whole | {"coreset_size_per_class": 20, "bases": 2048}) is not None
    assert published("split-cifar100", "kcl", "rbf", whole | {"coreset_size_per_class": 20}) is not None
    for other in ({"coreset_size_per_class": 10}, {"coreset_size_per_class": 20, "bases": 256}):
        assert published("split-cifar100", "kcl", "vrf", whole | other) is None
    assert published("split-cifar100", "ewc", None, whole | {"coreset_size_per_class": 10}) is not None


def test_ways_in_a_number_of_tasks_are_said_in_words() -> None:
    assert in_words({"ways": [3, 15]}) == "3–15 ways"
    assert in_words({"ways": [3, 15, 20]}) == "3–15 ways in 20 tasks"


def test_published_values_are_found_for_the_paper_s_streams() -> None:
    for benchmark, methods in TABLE_5.items():
        for method, printed in methods.items():
            kernel = "vrf" if method == "kcl" else None
            assert published(benchmark, method, kernel, {"tasks": 20}) == printed
    for kernel, printed in TABLE_1.items():
        assert published("split-cifar100", "kcl", kernel, {"tasks": 20, "ways": 5})[:2] == printed[:2]
    assert published("split-cifar100", "kcl", "rff", {"tasks": 20, "ways": 5}) is None
    for benchmark, printed in TABLE_2.items():
        for ways in ([3, 15], [3, 15, 20]):
            assert published(benchmark, "kcl", "vrf", {"ways": ways}) == printed["varied"]
        assert published(benchmark, "kcl", "vrf", {"ways": [2, 4]}) is None


def test_runs_on_held_out_samples_have_a_column_of_their_own(make_run) -> None:
    """As in the trials of `kcl tune`."""
    columns, _ = headline(group_runs([make_run(), make_run(held_out=0.1)]))
    assert columns == [
        "permuted-digits (3 tasks)",
        "permuted-digits (3 tasks, 0.1 held out)",
    ]


def test_markdown_tells_the_same(make_run) -> None:
    runs = runs_of(make_run, "kcl", 1.0, benchmark="permuted-mnist", tasks=20) + runs_of(
        make_run, "a|b", 4.0, benchmark="permuted-mnist", tasks=20, command="kcl run x\n```"
    )
    text = markdown(runs, "A *title*")
    assert text.startswith("# A \\*title\\*\n")
    assert "| **" in text
    assert "(85.5 ± 0.78)" in text
    assert "a\\|b" in text
    assert "    kcl run x ```" in text
