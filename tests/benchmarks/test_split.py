"""Split streams: no class in two tasks, no sample in train and test, everything fixed by the seed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import kcl
from kcl.benchmarks.split import SplitClasses
from kcl.benchmarks.task import Task
from kcl.benchmarks.ways import Ways
from kcl.data.dataset import Dataset
from kcl.data.mapped_images import IMAGENET_MEAN, IMAGENET_STD
from kcl.errors import KclError


def _dataset(classes: int = 20, train: int = 12, test: int = 4, uneven: bool = False, side: int = 4) -> Dataset:
    """Images that are known by their first pixel's channels: class, row within the class, train or test.

    `uneven`: class k has k training samples more than class 0.
    """
    parts = []
    for which, per_class in ((0, train), (1, test)):
        labels = torch.cat([torch.full((per_class + uneven * k * (1 - which),), k) for k in range(classes)])
        labels = labels[torch.randperm(len(labels), generator=torch.Generator().manual_seed(which))]
        images = torch.zeros(len(labels), 3, side, side, dtype=torch.uint8)
        images[:, 0, 0, 0], images[:, 1, 0, 0], images[:, 2, 0, 0] = labels, torch.arange(len(labels)) % 256, which
        parts += [images, labels]
    return Dataset("made up", *parts, class_names=tuple(map(str, range(classes))))


def _same(one: Task, two: Task) -> bool:
    return one.classes == two.classes and all(
        torch.equal(a.rows, b.rows) and torch.equal(a.labels, b.labels)
        for a, b in ((one.train, two.train), (one.test, two.test))
    )


STREAMS: dict[str, dict[str, Any]] = {
    "fixed": {},
    "shuffled": {"class_order": "shuffled"},
    "two ways": {"ways": 2},
    "varied": {"ways": (3, 6)},
    "varied, so many tasks": {"ways": (2, 9, 6)},
    "varied and shuffled": {"ways": (2, 9), "class_order": "shuffled"},
    "few samples": {"train_per_task": 31},
    "some tasks": {"tasks": 3, "ways": 4},
}


@pytest.mark.parametrize("name", STREAMS)
class TestEveryStream:
    def test_tasks_share_no_class_and_hold_every_sample_of_theirs(self, name: str) -> None:
        stream = SplitClasses(_dataset(), **STREAMS[name])
        seen: list[int] = []
        for index, task in enumerate(stream):
            task.check()
            assert task.index == index
            assert len(set(task.classes)) == task.ways == stream.task_ways[index]
            seen += task.classes
            for examples, which, each in ((task.train, 0, 12), (task.test, 1, 4)):
                shown = examples.inputs[examples.rows]
                assert (shown[:, 2, 0, 0] == which).all()
                assert len(set(examples.rows.tolist())) == len(examples)
                own = torch.tensor(task.classes)[examples.labels]
                assert torch.equal(own, shown[:, 0, 0, 0].long())
                if which or not stream.train_per_task:
                    assert examples.labels.bincount().tolist() == [each] * task.ways
        assert len(set(seen)) == len(seen)

    def test_training_and_test_samples_come_from_arrays_of_their_own(self, name: str) -> None:
        stream = SplitClasses(_dataset(), **STREAMS[name])
        for task in stream:
            assert task.train.inputs is stream.dataset.train_inputs
            assert task.test.inputs is stream.dataset.test_inputs

    def test_is_fixed_by_its_seed_and_can_be_gone_through_in_any_order(self, name: str) -> None:
        one, two = (SplitClasses(_dataset(), seed=5, **STREAMS[name]) for _ in range(2))
        assert len(one) == len(two)
        assert all(_same(one[index], two[index]) for index in reversed(range(len(one))))

    def test_is_longer_without_change_when_more_tasks_are_asked_for(self, name: str) -> None:
        options = STREAMS[name] | {"tasks": None}
        long = SplitClasses(_dataset(), seed=2, **options)
        short = SplitClasses(_dataset(), seed=2, **options | {"tasks": 2})
        assert len(short) == 2
        assert all(_same(short[index], long[index]) for index in range(2))

    def test_stops_at_its_end(self, name: str) -> None:
        stream = SplitClasses(_dataset(), **STREAMS[name])
        with pytest.raises(IndexError):
            stream[len(stream)]


class TestClasses:
    def test_are_in_the_datasets_order_whatever_the_seed(self) -> None:
        for seed in range(3):
            tasks = list(SplitClasses(_dataset(), seed=seed))
            assert [task.classes for task in tasks] == [tuple(range(5 * t, 5 * t + 5)) for t in range(4)]

    def test_are_shuffled_by_the_seed_on_request(self) -> None:
        orders = set()
        for seed in range(5):
            stream = SplitClasses(_dataset(), seed=seed, class_order="shuffled")
            orders.add(sum((task.classes for task in stream), ()))
        assert len(orders) == 5
        assert all(sorted(order) == list(range(20)) for order in orders)


class TestVariedWays:
    @given(st.integers(0, 2**40), st.integers(2, 6), st.integers(0, 14), st.integers(20, 100))
    def test_every_task_lies_in_the_range_until_too_few_classes_are_left(
        self, seed: int, low: int, more: int, classes: int
    ) -> None:
        dataset = _dataset(classes, 1, 1, side=1)
        stream = SplitClasses(dataset, seed=seed, ways=(low, low + max(1, more)))
        assert all(low <= ways <= low + max(1, more) for ways in stream.task_ways)
        assert 0 <= classes - sum(stream.task_ways) < low

    def test_the_paper_s_range_gives_between_seven_and_thirty_three_tasks(self) -> None:
        dataset = _dataset(100, 1, 1, side=1)
        drawn = [SplitClasses(dataset, seed=seed, ways=(3, 15)).task_ways for seed in range(200)]
        assert len(set(drawn)) == 200
        firsts = np.bincount([ways[0] for ways in drawn], minlength=16)[3:]
        assert firsts.min() > 3  # each of the thirteen is drawn about fifteen times
        assert 10 < np.mean([len(ways) for ways in drawn]) < 13

    def test_more_tasks_than_the_draw_gives_are_refused(self) -> None:
        count = len(SplitClasses(_dataset(), seed=1, ways=(3, 6)))
        with pytest.raises(KclError, match=rf"make {count} tasks of 3-6 ways with seed 1, not {count + 1}"):
            SplitClasses(_dataset(), count + 1, seed=1, ways=(3, 6))

    @given(st.integers(0, 2**40), st.integers(2, 6), st.integers(0, 9), st.integers(1, 12), st.data())
    def test_so_many_tasks_share_out_all_classes(
        self, seed: int, low: int, more: int, tasks: int, data: st.DataObject
    ) -> None:
        classes = data.draw(st.integers(max(low * tasks, low + more), max((low + more) * tasks, low + more)))
        dataset = _dataset(classes, 1, 1, side=1)
        stream = SplitClasses(dataset, seed=seed, ways=(low, low + more, tasks))
        assert all(low <= ways <= low + more for ways in stream.task_ways)
        assert (len(stream), sum(stream.task_ways)) == (tasks, classes)

    def test_every_way_to_share_them_out_is_equally_likely(self) -> None:
        dataset = _dataset(8, 1, 1, side=1)  # 2+2+4, 2+3+3, …: six ways
        drawn = [SplitClasses(dataset, seed=seed, ways=(2, 4, 3)).task_ways for seed in range(1200)]
        counts = [drawn.count(ways) for ways in sorted(set(drawn))]
        assert len(counts) == 6
        assert sum((count - 200) ** 2 / 200 for count in counts) < 30.0  # χ² with 5 degrees: exceeded once in 70,000

    def test_a_range_of_one_number_is_that_number(self) -> None:
        assert SplitClasses(_dataset(), ways=(5, 5)).ways == 5


class TestTrainPerTask:
    def test_is_even_over_the_classes(self) -> None:
        for task in SplitClasses(_dataset(), train_per_task=33):
            assert sorted(task.train.labels.bincount().tolist()) == [6, 6, 7, 7, 7]
            assert task.test.labels.bincount().tolist() == [4] * 5

    def test_is_drawn_anew_for_every_task_and_seed(self) -> None:
        rows = {
            tuple(task.train.rows.sort().values.tolist())
            for seed in range(3)
            for task in SplitClasses(_dataset(), seed=seed, train_per_task=20)
        }
        assert len(rows) == 12

    def test_a_class_that_has_few_gives_what_it_has(self) -> None:
        task = SplitClasses(_dataset(5, train=2, uneven=True), train_per_task=16)[0]
        assert task.train.labels.bincount().tolist() == [2, 3, 3, 4, 4]

    def test_a_task_that_has_fewer_gives_all(self) -> None:
        stream = SplitClasses(_dataset(4, train=2, uneven=True), ways=2, train_per_task=9)
        assert [len(task.train) for task in stream] == [5, 9]


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"ways": 1}, "ways must be at least 2"),
        ({"ways": (6, 3)}, "3-6"),
        ({"ways": (1, 3)}, "at least 2"),
        ({"ways": "3-15"}, r"a pair such as \(3, 15\), .* not '3-15'"),
        ({"ways": 2.5}, "whole number"),
        ({"ways": (3, 4, 5, 6)}, "a pair"),
        ({"ways": (3, 4, 8)}, "8 tasks of 3 to 4 classes cannot .* the 20 classes"),
        ({"ways": (3, 4, 4)}, "4 tasks of 3 to 4 classes cannot .* the 20 classes"),
        ({"ways": (3, 6, 5), "tasks": 6}, "make 5 tasks of 3-6/5 ways with seed 0, not 6"),
        ({"ways": 21}, "at most 20"),
        ({"ways": (3, 21)}, "at most 20"),
        ({"ways": 7}, "do not make whole tasks of 7 ways: choose other ways, or 2 tasks to leave the last 6 classes"),
        ({"tasks": 0}, "tasks"),
        ({"tasks": -1}, "tasks"),
        ({"tasks": 5}, "make 4 tasks of 5 ways, not 5"),
        ({"class_order": "random"}, "class_order must be one of fixed, shuffled"),
        ({"train_per_task": 0}, "train_per_task must lie in 5 … 60"),
        ({"train_per_task": 4}, "train_per_task"),
        ({"train_per_task": 61}, "train_per_task"),
        ({"seed": -1}, "seed"),
    ],
)
def test_what_cannot_be_is_refused(options: dict[str, Any], reason: str) -> None:
    with pytest.raises(KclError, match=reason):
        SplitClasses(_dataset(), **options)


def test_classes_may_be_left_out_on_request() -> None:
    assert SplitClasses(_dataset(), 2, ways=7).task_ways == (7, 7)


def test_samples_are_seen_as_the_dataset_is_published() -> None:
    plain, scaled = _dataset(), Dataset(**{**vars(_dataset()), "mean": IMAGENET_MEAN, "std": IMAGENET_STD})
    for dataset, expected in ((plain, 0.0), (scaled, -0.485 / 0.229)):
        task = SplitClasses(dataset)[0]
        shown = task.view(task.train.inputs[task.train.rows])
        assert shown[0, 0, 1, 1].item() == pytest.approx(expected)


class _Convolutions(nn.Module):
    """As torchvision and timm make them: convolutions, BatchNorm, pooling, a flat output."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.AdaptiveAvgPool2d(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.body(x).flatten(1)


@pytest.mark.parametrize("ways", [5, (2, 7)])
def test_any_module_learns_such_a_stream(seeded: Any, ways: Ways) -> None:
    """Classes differ in brightness, so that they can be told apart."""
    dataset = _dataset()
    for images, labels in ((dataset.train_inputs, dataset.train_labels), (dataset.test_inputs, dataset.test_labels)):
        images[:, :, 1:] = (12 * labels[:, None, None, None]).byte()
    stream = SplitClasses(dataset, tasks=2, ways=ways)
    with seeded(0):
        backbone = _Convolutions()
    learner = kcl.KernelContinualLearner(stream, backbone=backbone, kernel="rbf", coreset_size_per_class=4, epochs=5)
    for task in stream:
        learner.learn(task)
        assert learner.accuracy(task) > 150.0 / task.ways
        assert set(learner.predict(dataset.test_inputs[:9], task).tolist()) <= set(task.classes)


@pytest.mark.parametrize("name", ["cifar-resnet", "miniimagenet-resnet", "mlp"])
def test_a_backbone_may_be_named(name: str) -> None:
    stream = SplitClasses(_dataset(side=16), tasks=1)
    learner = kcl.KernelContinualLearner(stream, backbone=name, bases=16, coreset_size_per_class=4)
    assert learner.settings.backbone == name
    learner.learn(stream[0])
    assert learner.logits(stream.dataset.test_inputs[:3], 0).shape == (3, 5)


def test_a_backbone_for_colour_refuses_other_inputs() -> None:
    stream = kcl.ArrayStream([(np.zeros((9, 4)), [0, 1, 2] * 3)])
    with pytest.raises(KclError, match=r"cifar-resnet needs colour images.* shape \(4,\)"):
        kcl.KernelContinualLearner(stream, backbone="cifar-resnet")
    with pytest.raises(KclError, match="unknown backbone 'resnet50'"):
        kcl.KernelContinualLearner(stream, backbone="resnet50")


@pytest.mark.data
class TestReal:
    def test_cifar100(self, cifar_dir: Path) -> None:
        stream = kcl.SplitCIFAR100(data_dir=cifar_dir)
        assert (len(stream), stream.recipe, stream.input_shape) == (20, "split-cifar100", (3, 32, 32))
        for task in stream:
            assert (len(task.train), len(task.test), task.ways) == (2500, 500, 5)
            assert task.classes == tuple(range(5 * task.index, 5 * task.index + 5))
            assert task.view.mean is None
        assert kcl.KernelContinualLearner(stream).settings.backbone == "cifar-resnet"
        varied = kcl.SplitCIFAR100(ways=(3, 15), seed=3, data_dir=cifar_dir)
        assert [len(task.train) for task in varied] == [500 * ways for ways in varied.task_ways]

    def test_miniimagenet(self, real_miniimagenet: Dataset) -> None:
        stream = SplitClasses(real_miniimagenet)
        assert len(stream) == 20
        for task in stream:
            assert (len(task.train), len(task.test), task.ways) == (2500, 500, 5)
        shown = task.view(task.train.inputs[task.train.rows[:200]])
        assert shown.mean().abs() < 0.7
        assert 0.5 < shown.std() < 2.0
