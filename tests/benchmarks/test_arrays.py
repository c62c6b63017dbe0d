"""Streams of the user's own arrays."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from kcl.benchmarks.array_stream import ArrayStream
from kcl.errors import KclError

X = np.zeros((4, 3), dtype=np.float32)


@given(st.lists(st.lists(st.integers(-(2**40), 2**40), min_size=1, max_size=12), min_size=1, max_size=4))
def test_any_whole_numbers_are_labels(tasks: list[list[int]]) -> None:
    """A task's labels, numbered within the task and looked up again, are the labels that were given."""
    stream = ArrayStream([(np.zeros((len(labels), 2)), labels) for labels in tasks])
    assert stream.class_labels == tuple(sorted({label for labels in tasks for label in labels}))
    for labels, task in zip(tasks, stream, strict=True):
        assert task.ways == len(set(labels))
        assert [stream.class_labels[task.classes[number]] for number in task.train.labels.tolist()] == labels


def test_inputs_stay_with_their_labels(draw: Any) -> None:
    train = [(draw.normal(6, 3), [7, 42, -3, 7, 42, -3]), (draw.normal(4, 3), [0, 1, 0, 1])]
    test = [(draw.normal(2, 3), [-3, 7]), (draw.normal(1, 3), [1])]
    stream = ArrayStream(train, test)
    assert stream.input_shape == (3,)
    for task, (inputs, _), (test_inputs, test_labels) in zip(stream, train, test, strict=True):
        assert torch.equal(task.view(task.train.inputs[task.train.rows]), inputs)
        assert torch.equal(task.view(task.test.inputs[task.test.rows]), test_inputs)
        assert [stream.class_labels[task.classes[number]] for number in task.test.labels.tolist()] == test_labels


@pytest.mark.parametrize("dtype", [np.uint8, np.int16, np.float64, np.float32])
def test_bytes_are_images_and_all_else_is_numbers(dtype: type) -> None:
    stored = np.array([[0, 51], [255, 102]], dtype=dtype)
    task = ArrayStream([(stored, np.array([0, 1]))])[0]
    divisor = 255.0 if dtype is np.uint8 else 1.0
    shown = task.view(task.train.inputs)
    assert shown.dtype == torch.float32
    torch.testing.assert_close(shown, torch.from_numpy(stored.astype(np.float32) / divisor))


def test_lists_arrays_and_tensors_are_taken_alike() -> None:
    inputs, labels = [[0.0, 1.0], [2.0, 3.0]], [5, 6]
    for pair in ((inputs, labels), (np.array(inputs), np.array(labels)), (torch.tensor(inputs), torch.tensor(labels))):
        task = ArrayStream([pair])[0]
        assert task.train.inputs.tolist() == inputs
        assert task.train.labels.tolist() == [0, 1]


def test_the_users_arrays_are_not_changed(draw: Any) -> None:
    inputs, labels = draw.normal(6, 3), torch.tensor([3, 1, 2, 3, 1, 2])
    before = inputs.clone(), labels.clone()
    ArrayStream([(inputs, labels)])[0].check()
    assert torch.equal(inputs, before[0])
    assert torch.equal(labels, before[1])


@pytest.mark.parametrize(
    ("train", "test", "words"),
    [
        ([], None, "at least one task"),
        ([(X, [0, 1, 0, 1])], [], "one test pair per task"),
        ([(X, [0, 1, 0])], None, "3 labels"),
        ([(X[0], [0, 1, 0])], None, r"train\[0\]"),
        ([(X, [0.0, 1.0, 0.0, 1.0])], None, "integers"),
        ([(X, [True, False, True, False])], None, "integers"),
        ([(X, [[0], [1], [0], [1]])], None, "integers"),
        ([(X, ["cat", "dog", "cat", "dog"])], None, "integers"),
        ([([[1.0, 2.0], [3.0]], [0, 1])], None, r"train\[0\]"),
        ([(X,)], None, r"train\[0\]"),
        ([(X + np.nan, [0, 1, 0, 1])], None, "not finite"),
        ([(X, [0, 1, 0, 1])], [(X + np.inf, [0, 1, 0, 1])], r"test\[0\].*not finite"),
        ([(X, [0, 1, 0, 1]), (np.zeros((4, 5)), [0, 1, 0, 1])], None, "one shape"),
        ([(X, [0, 1, 0, 1])], [(np.zeros((4, 5)), [0, 1, 0, 1])], "one shape"),
        ([(X, [0, 1, 0, 1])], [(X, [0, 1, 0, 9])], r"test labels \[9\] do not occur"),
    ],
)
def test_what_is_no_stream_is_refused_in_words(train: Any, test: Any, words: str) -> None:
    with pytest.raises(KclError, match=words):
        list(ArrayStream(train, test))
