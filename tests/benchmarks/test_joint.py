"""All tasks as one: every sample still seen as its own task shows it."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch

from kcl.benchmarks import joint_task
from kcl.benchmarks.array_stream import ArrayStream
from kcl.benchmarks.joint_task import join
from kcl.benchmarks.moved_pixels import PermutedPixels, RotatedPixels
from kcl.benchmarks.task import View
from kcl.data.dataset import Dataset
from kcl.errors import KclError


@pytest.fixture
def dataset(draw: Any) -> Dataset:
    images = (255 * draw.uniform(30, 1, 5, 5)).to(torch.uint8)
    labels = torch.arange(30) % 3
    return Dataset("made up", images, labels, images[:6], labels[:6], ("0", "1", "2"))


@pytest.mark.parametrize("chunk", [4, 8192])
@pytest.mark.parametrize("kind", [PermutedPixels, RotatedPixels])
def test_samples_are_moved_as_in_their_own_task(
    dataset: Dataset, kind: Any, chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(joint_task, "CHUNK", chunk)
    stream = kind(dataset, 3, seed=4, train_per_task=10)
    task = join(list(stream), 3)
    order = torch.randperm(30, generator=torch.Generator().manual_seed(0))
    moved = task.moved(order)
    assert moved.dtype == torch.uint8
    assert task.train.inputs is dataset.train_inputs
    for place, sample in zip(order.tolist(), moved, strict=True):
        own = stream[place // 10]
        torch.testing.assert_close(sample, own.moved(torch.tensor([place % 10]))[0], rtol=0.0, atol=0.0)
        assert int(task.train.labels[place]) == place // 10 * 3 + int(own.train.labels[place % 10])
        assert task.classes[int(task.train.labels[place])] == int(own.train.labels[place % 10])
    assert [part.index for part in task.parts] == [0, 1, 2]


def test_arrays_of_their_own_are_put_together(draw: Any) -> None:
    pairs = [(draw.normal(6, 4), torch.arange(6) % 2), (draw.normal(9, 4), 2 + torch.arange(9) % 3)]
    stream = ArrayStream(pairs)
    task = join(list(stream), 5)
    torch.testing.assert_close(task.moved(torch.arange(15)), torch.cat([inputs for inputs, _ in pairs]))
    assert task.train.labels.tolist() == [*pairs[0][1].tolist(), *(5 + pairs[1][1]).tolist()]


def test_tasks_scaled_in_different_ways_are_refused(draw: Any) -> None:
    first, second = ArrayStream([(draw.normal(6, 1, 2, 2), torch.arange(6) % 2)] * 2)
    with pytest.raises(KclError, match="stored or scaled"):
        join([first, dataclasses.replace(second, view=View(mean=(0.5,), std=(0.5,)))], 2)
