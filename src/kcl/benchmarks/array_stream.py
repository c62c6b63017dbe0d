"""A stream of the user's arrays: one (inputs, labels) pair per task."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from kcl.benchmarks.task import Examples, Stream, Task, View
from kcl.errors import KclError

Pair = tuple[Any, Any]


class ArrayStream(Stream):
    """Tasks from arrays or tensors. They may differ in their number of classes.

    Parameters
    ----------
    train : sequence of pairs (inputs, labels)
        One pair per task: inputs (n, …) of one shape in all tasks, labels (n,) of any integers. uint8 inputs are
        divided by 255; all others are used unscaled, in float32.
    test : sequence of pairs (inputs, labels), optional
        One pair per task, of the same classes.
    """

    def __init__(self, train: Sequence[Pair], test: Sequence[Pair] | None = None) -> None:
        if not train:
            raise KclError("a stream needs at least one task: give train=[(inputs, labels), …]")
        if test is not None and len(test) != len(train):
            raise KclError(f"train has {len(train)} tasks and test has {len(test)}; give one test pair per task")
        self._train = [_tensors(pair, f"train[{i}]") for i, pair in enumerate(train)]
        self._test = [_tensors(pair, f"test[{i}]") for i, pair in enumerate(test)] if test is not None else None
        shapes = {tuple(inputs.shape[1:]) for inputs, _ in self._train + (self._test or [])}
        if len(shapes) != 1:
            raise KclError(f"all tasks must have inputs of one shape; these have {sorted(shapes)}")
        self.task_count = len(train)
        self.input_shape = shapes.pop()
        self.class_labels = tuple(torch.cat([labels for _, labels in self._train]).unique().tolist())

    def task(self, index: int) -> Task:
        inputs, labels = self._train[index]
        values = labels.unique()
        test_inputs, test_labels = self._test[index] if self._test else (inputs[:0], labels[:0])
        unknown = set(test_labels.tolist()) - set(values.tolist())
        if unknown:
            raise KclError(f"task {index}: test labels {sorted(unknown)} do not occur in its training labels")
        numbers = {value: number for number, value in enumerate(self.class_labels)}
        return Task(
            index=index,
            train=Examples(inputs, torch.arange(len(labels)), torch.searchsorted(values, labels)),
            test=Examples(test_inputs, torch.arange(len(test_labels)), torch.searchsorted(values, test_labels)),
            classes=tuple(numbers[value] for value in values.tolist()),
            view=View(),
        )


def _tensors(pair: Pair, name: str) -> tuple[Tensor, Tensor]:
    try:
        inputs, labels = pair
        x, y = torch.as_tensor(inputs), torch.as_tensor(labels)
    except (TypeError, ValueError, RuntimeError) as error:
        raise KclError(
            f"{name}: expected a pair (inputs, labels), an array of numbers and a list of integers: {error}"
        ) from None
    if y.is_floating_point() or y.dtype == torch.bool or y.ndim != 1:
        raise KclError(f"{name}: labels must be a list of integers, not {y.ndim}-dimensional {y.dtype}")
    if x.ndim < 2 or len(x) != len(y):
        raise KclError(f"{name}: inputs of shape {tuple(x.shape)} do not match {len(y)} labels")
    x = x if x.dtype == torch.uint8 else x.float()
    if x.is_floating_point() and not bool(torch.isfinite(x).all()):
        raise KclError(f"{name}: the inputs contain values that are not finite in single precision")
    return x, y.long()
