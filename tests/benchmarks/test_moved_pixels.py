"""Permuted and rotated images: one contract for every stream, then what each does to its pixels."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from torch import Tensor

import kcl
from kcl.benchmarks.moved_pixels import MovedPixels, PermutedPixels, RotatedPixels, rotation_map
from kcl.benchmarks.registry import BENCHMARKS, find_benchmark
from kcl.benchmarks.task import Examples, Task
from kcl.data.dataset import Dataset
from kcl.errors import KclError


def _dataset(side: int = 8) -> Dataset:
    """Random images: those of the training set dark, those of the test set bright, so that none can be mistaken."""
    random = torch.Generator().manual_seed(0)
    dark = torch.randint(1, 128, (60, 1, side, side), generator=random, dtype=torch.uint8)
    bright = torch.randint(128, 256, (30, 1, side, side), generator=random, dtype=torch.uint8)
    names = tuple("abc")
    return Dataset("random", dark, torch.arange(60) % 3, bright, torch.arange(30) % 3, names)


def _shown(task: Task, examples: Examples) -> Tensor:
    return task.view(examples.inputs[examples.rows])


def _same(one: Task, two: Task) -> bool:
    return one.classes == two.classes and all(
        torch.equal(_shown(one, a), _shown(two, b)) and torch.equal(a.labels, b.labels)
        for a, b in ((one.train, two.train), (one.test, two.test))
    )


STREAMS: dict[str, Callable[..., MovedPixels]] = {
    "permuted": lambda **options: PermutedPixels(_dataset(), **options),
    "rotated": lambda **options: RotatedPixels(_dataset(), **options),
    "permuted digits": lambda **options: kcl.PermutedDigits(**options),
    "rotated digits": lambda **options: kcl.RotatedDigits(**options),
}


@pytest.mark.parametrize("name", STREAMS)
class TestEveryStream:
    @pytest.fixture(autouse=True)
    def _needs_scikit_learn(self, name: str) -> None:
        if name.endswith("digits"):
            pytest.importorskip("sklearn")

    def test_has_twenty_tasks_unless_told_otherwise(self, name: str) -> None:
        assert len(STREAMS[name]()) == 20
        assert len(list(STREAMS[name](tasks=3))) == len(STREAMS[name](tasks=3)) == 3

    def test_can_be_gone_through_again(self, name: str) -> None:
        stream = STREAMS[name](tasks=4, train_per_task=20)
        assert [task.index for task in stream] == [0, 1, 2, 3]
        assert all(_same(one, two) for one, two in zip(stream, stream, strict=True))

    def test_gives_the_same_task_in_any_order(self, name: str) -> None:
        tasks = list(STREAMS[name](tasks=4, train_per_task=20))
        other = STREAMS[name](tasks=4, train_per_task=20)
        assert all(_same(other[index], tasks[index]) for index in (3, 0, 2, 1))

    def test_is_longer_without_change_when_more_tasks_are_asked_for(self, name: str) -> None:
        short, long = STREAMS[name](tasks=2, train_per_task=20), STREAMS[name](tasks=9, train_per_task=20)
        assert all(_same(short[index], long[index]) for index in range(2))

    def test_is_fixed_by_its_seed(self, name: str) -> None:
        one, again, other = (STREAMS[name](tasks=3, seed=seed, train_per_task=20) for seed in (7, 7, 8))
        assert all(_same(a, b) for a, b in zip(one, again, strict=True))
        assert not any(_same(a, b) for a, b in zip(one, other, strict=True))

    def test_shows_tasks_differently(self, name: str) -> None:
        """Neighbours may be rotated by almost the same angle; three tasks lie at least 20 degrees apart."""
        stream = STREAMS[name](tasks=10)
        shown = [_shown(stream[index], stream[index].test) for index in (0, 3, 6, 9)]
        assert all(not torch.equal(shown[a], shown[b]) for a in range(4) for b in range(a))

    def test_shows_images_between_zero_and_one_with_labels_of_its_classes(self, name: str) -> None:
        stream = STREAMS[name](tasks=3)
        for task in stream:
            task.check()
            assert task.ways == len(stream.class_labels)
            for examples in (task.train, task.test):
                images = _shown(task, examples)
                assert images.shape == (len(examples), *stream.input_shape)
                assert images.dtype == torch.float32
                assert images.min() >= 0.0
                assert images.max() <= 1.0
                assert images.max() > 0.4
                assert set(examples.labels.tolist()) == set(range(task.ways))

    def test_trains_on_all_training_samples_and_tests_on_all_test_samples(self, name: str) -> None:
        stream = STREAMS[name](tasks=2)
        for task in stream:
            assert sorted(task.train.rows.tolist()) == list(range(len(stream.dataset.train_labels)))
            assert sorted(task.test.rows.tolist()) == list(range(len(stream.dataset.test_labels)))

    def test_never_mixes_training_and_test(self, name: str) -> None:
        stream = STREAMS[name](tasks=3, train_per_task=20)
        for task in stream:
            assert torch.equal(task.train.inputs, stream.dataset.train_inputs)
            assert torch.equal(task.test.inputs, stream.dataset.test_inputs)
            assert torch.equal(task.train.labels, stream.dataset.train_labels[task.train.rows])
            assert torch.equal(task.test.labels, stream.dataset.test_labels[task.test.rows])

    def test_draws_the_training_samples_of_each_task_without_replacement(self, name: str) -> None:
        stream = STREAMS[name](tasks=3, train_per_task=20)
        drawn = [frozenset(task.train.rows.tolist()) for task in stream]
        assert [len(rows) for rows in drawn] == [20, 20, 20]
        assert len(set(drawn)) == 3
        assert all(len(task.test) == len(stream.dataset.test_labels) for task in stream)

    def test_stops_at_its_end(self, name: str) -> None:
        with pytest.raises(IndexError):
            STREAMS[name](tasks=2)[2]

    @pytest.mark.parametrize(
        "options", [{"tasks": 0}, {"tasks": -1}, {"train_per_task": 0}, {"train_per_task": 10**6}, {"seed": -1}]
    )
    def test_refuses_what_cannot_be(self, name: str, options: dict[str, int]) -> None:
        (option,) = options
        with pytest.raises(KclError, match=option):
            list(STREAMS[name](**{"tasks": 2} | options))


class TestPermuted:
    def test_task_0_shows_the_images_as_they_are(self) -> None:
        task, dataset = PermutedPixels(_dataset())[0], _dataset()
        torch.testing.assert_close(_shown(task, task.train), dataset.train_inputs / 255.0)
        torch.testing.assert_close(_shown(task, task.test), dataset.test_inputs / 255.0)

    @given(st.integers(0, 2**40), st.integers(1, 50))
    def test_every_other_task_is_a_permutation(self, seed: int, index: int) -> None:
        stream = PermutedPixels(_dataset(), tasks=51, seed=seed)
        assert sorted(stream.pixel_map(index).tolist()) == list(range(64))

    def test_training_and_test_images_are_permuted_alike(self) -> None:
        stream = PermutedPixels(_dataset(), tasks=4)
        for index in range(1, 4):
            task, order = stream[index], stream.pixel_map(index)
            for examples in (task.train, task.test):
                expected = examples.inputs[examples.rows].flatten(1)[:, order].view(-1, 1, 8, 8) / 255.0
                torch.testing.assert_close(_shown(task, examples), expected)

    def test_permutations_are_shared_by_no_two_tasks_or_seeds(self) -> None:
        maps = [
            tuple(PermutedPixels(_dataset(), tasks=20, seed=seed).pixel_map(index).tolist())
            for seed in range(10)
            for index in range(1, 20)
        ]
        assert len(set(maps)) == len(maps)

    def test_every_place_is_equally_likely(self) -> None:
        """χ² of where pixel 0 goes, over 6,400 permutations; refused below a p-value of 1e-6, with fixed seeds."""
        chi2 = pytest.importorskip("scipy.stats").chi2
        places = [
            PermutedPixels(_dataset(), tasks=101, seed=seed).pixel_map(index).tolist().index(0)
            for seed in range(64)
            for index in range(1, 101)
        ]
        counts = np.bincount(places, minlength=64)
        assert chi2.sf(((counts - 100.0) ** 2 / 100.0).sum(), 63) > 1e-6


def _rotated_by_pillow(images: np.ndarray, degrees: float) -> np.ndarray:
    return np.stack([np.asarray(Image.fromarray(image).rotate(degrees, Image.Resampling.NEAREST)) for image in images])


class TestRotated:
    @pytest.mark.parametrize("side", [8, 28])
    def test_the_map_is_that_of_pillow(self, side: int) -> None:
        """Exactly, pixel for pixel: whole and half degrees, and a thousand others. The images number their pixels."""
        numbers = np.arange(1, side * side + 1, dtype=np.int32).reshape(1, side, side)
        angles = [*np.arange(-10.0, 190.5, 0.5), *np.random.default_rng(0).uniform(-10.0, 190.0, 1000)]
        differing = {}
        for degrees in angles:
            found = rotation_map(side, float(degrees)).view(side, side).numpy() + 1
            different = int((found != _rotated_by_pillow(numbers, float(degrees))[0]).sum())
            if different:
                differing[float(degrees)] = different
        assert not differing, (
            f"{len(differing)} of {len(angles)} angles differ, in up to {max(differing.values())} pixels"
        )

    def test_the_images_shown_are_those_of_pillow(self) -> None:
        stream = RotatedPixels(_dataset(28), tasks=20, seed=3)
        for task in stream:
            expected = _rotated_by_pillow(stream.dataset.test_inputs[:5, 0].numpy(), stream.angle(task.index))
            found = task.view(task.test.inputs[:5])[:, 0]
            torch.testing.assert_close(found, torch.from_numpy(expected) / 255.0)

    def test_a_quarter_turn_is_counter_clockwise(self) -> None:
        numbers = torch.arange(64).view(8, 8)
        assert torch.equal(rotation_map(8, 90.0).view(8, 8), torch.rot90(numbers))
        assert torch.equal(rotation_map(8, 180.0).view(8, 8), torch.rot90(numbers, 2))
        assert torch.equal(rotation_map(8, 0.0).view(8, 8), numbers)

    def test_what_comes_from_outside_is_black(self) -> None:
        task = RotatedPixels(_dataset(), tasks=6)[5]
        outside = rotation_map(8, RotatedPixels(_dataset(), tasks=6).angle(5)) < 0
        images = _shown(task, task.test).flatten(1)
        assert outside[0]  # a corner, at 40 to 50 degrees
        assert (images[:, outside] == 0.0).all()
        assert (images[:, ~outside] > 0.0).all()

    def test_task_t_is_turned_by_10t_less_up_to_ten_degrees(self) -> None:
        """10t − U(0, 10): χ² in ten bins over 2,000 angles; refused below a p-value of 1e-6, with fixed seeds."""
        chi2 = pytest.importorskip("scipy.stats").chi2
        streams = [RotatedPixels(_dataset(), tasks=20, seed=seed) for seed in range(100)]
        steps = np.array([[index - stream.angle(index) / 10.0 for index in range(20)] for stream in streams])
        assert steps.min() >= 0.0
        assert steps.max() <= 1.0
        assert len(np.unique(steps)) == steps.size
        counts = np.histogram(steps, bins=10, range=(0.0, 1.0))[0]
        assert chi2.sf(((counts - 200.0) ** 2 / 200.0).sum(), 9) > 1e-6


class TestByName:
    @pytest.mark.parametrize("name", BENCHMARKS)
    def test_every_benchmark_is_found(self, name: str) -> None:
        assert find_benchmark(name).description

    def test_an_unknown_one_names_the_nearest(self) -> None:
        with pytest.raises(KclError, match="permuted-mnist"):
            find_benchmark("permutted-mnist")

    def test_each_class_has_the_settings_published_for_it(self) -> None:
        pytest.importorskip("sklearn")
        assert kcl.PermutedDigits().recipe == "permuted-digits"
        assert kcl.RotatedDigits().recipe == "rotated-digits"


@pytest.fixture(scope="module")
def rotated(data_dir: Path) -> kcl.RotatedMNIST:
    return kcl.RotatedMNIST(tasks=20, data_dir=data_dir)


@pytest.mark.data
class TestRealImages:
    @pytest.mark.parametrize("seed", range(5))
    def test_rotated_images_are_those_of_pillow(self, rotated: kcl.RotatedMNIST, seed: int) -> None:
        stream = RotatedPixels(rotated.dataset, tasks=20, seed=seed)
        images = rotated.dataset.test_inputs[:50]
        for task in stream:
            expected = _rotated_by_pillow(images[:, 0].numpy(), stream.angle(task.index))
            found = task.view.move(images)[:, 0]
            assert torch.equal(found, torch.from_numpy(expected)), f"task {task.index}: {stream.angle(task.index)}°"

    def test_tasks_have_all_of_mnist(self, rotated: kcl.RotatedMNIST, data_dir: Path) -> None:
        permuted = kcl.PermutedMNIST(tasks=2, data_dir=data_dir)
        assert (permuted.recipe, rotated.recipe) == ("permuted-mnist", "rotated-mnist")
        for stream in (permuted, rotated):
            task: Any = stream[1]
            assert (len(task.train), len(task.test), task.ways) == (60_000, 10_000, 10)
            assert stream.input_shape == (1, 28, 28)
