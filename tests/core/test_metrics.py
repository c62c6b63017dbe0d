"""The metrics against hand-computed numbers and against naive loops over the definitions."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kcl.core.metrics import AccuracyMatrix
from kcl.errors import KclError

PERCENTS = st.floats(0, 100)


@st.composite
def square_lists(draw: st.DrawFn, cells: st.SearchStrategy = PERCENTS) -> list[list[float | None]]:
    size = draw(st.integers(1, 6))
    return draw(st.lists(st.lists(cells, min_size=size, max_size=size), min_size=size, max_size=size))


@pytest.fixture
def three_tasks() -> AccuracyMatrix:
    return AccuracyMatrix.from_lists([[90.0, 12.0, None], [80.0, 95.0, 11.0], [85.0, 70.0, 99.0]])


def test_hand_computed(three_tasks: AccuracyMatrix) -> None:
    assert three_tasks.average_accuracy_after(0) == 90.0
    assert three_tasks.average_accuracy_after(1) == pytest.approx((80 + 95) / 2)
    assert three_tasks.average_accuracy == pytest.approx((85 + 70 + 99) / 3)
    assert three_tasks.learning_accuracy == pytest.approx((90 + 95 + 99) / 3)
    assert three_tasks.average_incremental_accuracy == pytest.approx((90 + (80 + 95) / 2 + (85 + 70 + 99) / 3) / 3)
    assert three_tasks.forgetting == pytest.approx(((90 - 85) + (95 - 70)) / 2 / 100)
    assert three_tasks.backward_transfer == pytest.approx(((85 - 90) + (70 - 95)) / 2 / 100)
    assert three_tasks.forward_transfer([10.0, 10.0, 10.0]) == pytest.approx(((12 - 10) + (11 - 10)) / 2 / 100)


def test_forgetting_takes_the_best_and_not_the_first_accuracy() -> None:
    matrix = AccuracyMatrix.from_lists([[50.0, None, None], [80.0, 60.0, None], [70.0, 60.0, 60.0]])
    assert matrix.forgetting == pytest.approx((80 - 70) / 2 / 100)
    assert matrix.backward_transfer == pytest.approx((70 - 50) / 2 / 100)


def test_forgetting_ignores_a_task_before_it_is_learned() -> None:
    matrix = AccuracyMatrix.from_lists([[90.0, 99.0, None], [90.0, 50.0, None], [90.0, 50.0, 60.0]])
    assert matrix.forgetting == 0.0


def test_forgetting_is_negative_when_old_tasks_improve() -> None:
    improved = AccuracyMatrix.from_lists([[50.0, None], [60.0, 70.0]])
    assert improved.forgetting == pytest.approx(-0.1)
    assert improved.forgetting_with_last == 0.0


def test_one_task_has_no_forgetting_and_no_transfer() -> None:
    matrix = AccuracyMatrix.from_lists([[70.0]])
    assert matrix.summary([10.0]) == {
        "average_accuracy": 70.0,
        "average_incremental_accuracy": 70.0,
        "forgetting": None,
        "forgetting_with_last": None,
        "learning_accuracy": 70.0,
        "backward_transfer": None,
        "forward_transfer": None,
    }


def test_a_matrix_of_the_last_row_alone_has_an_average_and_nothing_else() -> None:
    """Multi-task training is measured once, at the end."""
    metrics = AccuracyMatrix.from_lists([[None, None], [80.0, 90.0]]).summary()
    assert metrics.pop("average_accuracy") == 85.0
    assert set(metrics.values()) == {None}


def test_forward_transfer_needs_every_accuracy(three_tasks: AccuracyMatrix) -> None:
    assert three_tasks.forward_transfer(None) is None
    assert three_tasks.forward_transfer([10.0, None, 10.0]) is None
    assert three_tasks.forward_transfer([None, 10.0, 10.0]) is not None  # the first task's is not used
    blind = AccuracyMatrix.from_lists([[90.0, None], [80.0, 90.0]])
    assert blind.forward_transfer([10.0, 10.0]) is None


@given(square_lists(), st.data())
def test_metrics_follow_the_definitions(rows: list[list[float]], data: st.DataObject) -> None:
    size, matrix = len(rows), AccuracyMatrix.from_lists(rows)
    initial = data.draw(st.lists(PERCENTS, min_size=size, max_size=size))
    for t in range(size):
        assert matrix.average_accuracy_after(t) == pytest.approx(sum(rows[t][i] for i in range(t + 1)) / (t + 1))
    assert matrix.learning_accuracy == pytest.approx(sum(rows[i][i] for i in range(size)) / size)
    if size == 1:
        return
    forgotten = with_last = backward = forward = 0.0
    for i in range(size - 1):
        forgotten += max(rows[t][i] - rows[-1][i] for t in range(i, size - 1))
        backward += rows[-1][i] - rows[i][i]
        forward += rows[i][i + 1] - initial[i + 1]
        with_last += max(rows[t][i] - rows[-1][i] for t in range(i, size))
    scale = 100 * (size - 1)
    assert matrix.forgetting_with_last == pytest.approx(with_last / scale, abs=1e-9)
    assert matrix.forgetting == pytest.approx(forgotten / scale, abs=1e-9)
    assert matrix.backward_transfer == pytest.approx(backward / scale, abs=1e-9)
    assert matrix.forward_transfer(initial) == pytest.approx(forward / scale, abs=1e-9)
    # The best accuracy is at least the first one.
    assert matrix.forgetting >= -matrix.backward_transfer - 1e-9


@given(square_lists(st.none() | PERCENTS))
def test_lists_round_trip(rows: list[list[float | None]]) -> None:
    assert AccuracyMatrix.from_lists(rows).to_lists() == rows


def test_built_step_by_step_equals_built_at_once(three_tasks: AccuracyMatrix) -> None:
    matrix = AccuracyMatrix(3)
    assert np.isnan(matrix.values).all()
    for learned, row in enumerate(three_tasks.to_lists()):
        for task, percent in enumerate(row):
            if percent is not None:
                matrix.record(learned, task, np.float32(percent))
    assert matrix.to_lists() == three_tasks.to_lists()


def test_values_are_read_only(three_tasks: AccuracyMatrix) -> None:
    with pytest.raises(ValueError, match="read-only"):
        three_tasks.values[0, 0] = 100.0


@pytest.mark.parametrize(
    "rows",
    [
        None,
        [],
        {},
        "matrix",
        [[]],
        [[1.0, 2.0]],
        [[1.0], [2.0]],
        [[1.0, 2.0], [3.0]],
        [5.0],
        [["90"]],
        [[True]],
        [[[90.0]]],
        [[math.nan]],
        [[math.inf]],
        [[-0.1]],
        [[100.1]],
        [[10**400]],
        [[]] * 1_000_000,
    ],
)
def test_bad_lists_are_refused(rows: object) -> None:
    with pytest.raises(KclError):
        AccuracyMatrix.from_lists(rows)


@pytest.mark.parametrize(("learned", "task"), [(-1, 0), (0, -1), (2, 0), (0, 2)])
def test_tasks_out_of_range_are_refused(learned: int, task: int) -> None:
    with pytest.raises(KclError, match="2 tasks"):
        AccuracyMatrix(2).record(learned, task, 50.0)


def test_other_misuse_is_refused(three_tasks: AccuracyMatrix) -> None:
    with pytest.raises(KclError, match="at least one"):
        AccuracyMatrix(0)
    with pytest.raises(KclError, match="task 3"):
        three_tasks.average_accuracy_after(3)
    with pytest.raises(KclError, match="2 initial accuracies"):
        three_tasks.forward_transfer([10.0, 10.0])
    with pytest.raises(KclError, match="initial accuracy on task 1"):
        three_tasks.forward_transfer([10.0, 101.0, 10.0])


def test_forgetting_so_far_is_the_forgetting_of_a_shorter_stream() -> None:
    rows = [[90.0, None, None], [80.0, 95.0, None], [70.0, 96.0, 99.0]]
    matrix, shorter = AccuracyMatrix.from_lists(rows), AccuracyMatrix.from_lists([row[:2] for row in rows[:2]])
    assert matrix.forgetting_after(0) is None
    assert matrix.forgetting_after(1) == shorter.forgetting == pytest.approx(0.1)
    assert matrix.forgetting_after(2) == matrix.forgetting == pytest.approx((20 - 1) / 2 / 100)
    with pytest.raises(KclError, match="task 3 does not exist"):
        matrix.forgetting_after(3)
