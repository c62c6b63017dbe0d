"""What a task shows, and what it refuses."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F

from kcl.benchmarks.task import Examples, Task, View
from kcl.errors import KclError


def _examples(labels: list[int]) -> Examples:
    return Examples(torch.zeros(10, 2), torch.arange(len(labels)), torch.tensor(labels, dtype=torch.int64))


class TestView:
    def test_bytes_are_divided_by_255(self) -> None:
        stored = torch.tensor([[0, 51, 255]], dtype=torch.uint8)
        torch.testing.assert_close(View()(stored), torch.tensor([[0.0, 0.2, 1.0]]))

    def test_numbers_stay_as_they_are(self, draw: Any) -> None:
        stored = 100.0 * draw.normal(4, 3)
        assert torch.equal(View()(stored), stored)

    @pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
    def test_pixels_move_and_minus_one_is_black(self, dtype: torch.dtype) -> None:
        stored = torch.tensor([[[[10, 20], [30, 40]]]], dtype=dtype)
        moved = View(torch.tensor([3, -1, 0, 0])).move(stored)
        assert moved.dtype == dtype
        assert moved.tolist() == [[[[40, 0], [10, 10]]]]

    def test_channels_are_standardised_after_scaling(self) -> None:
        stored = torch.full((1, 2, 3, 3), 255, dtype=torch.uint8)
        shown = View(mean=(0.5, 0.25), std=(0.5, 3.0))(stored)
        torch.testing.assert_close(shown[0, 0], torch.full((3, 3), 1.0))
        torch.testing.assert_close(shown[0, 1], torch.full((3, 3), 0.25))

    def test_samples_far_away_are_drawn_nearer_in_their_direction_and_keep_their_order(self, draw: Any) -> None:
        near, far = draw.normal(4, 3), 100.0 * draw.normal(4, 3)
        view = View(reach=10.0)
        assert torch.equal(view(near), near)
        torch.testing.assert_close(F.normalize(view(far)), F.normalize(far))
        before, after = (x.norm(dim=1) for x in (far, view(far)))
        assert torch.equal(before.argsort(), after.argsort())
        assert ((after > 10.0) & (after < 40.0)).all()


class TestCheck:
    def test_a_sound_task_passes(self) -> None:
        Task(0, _examples([0, 1, 0]), _examples([1]), (4, 9)).check()
        Task(0, _examples([0, 1, 0]), _examples([]), (4, 9)).check()

    @pytest.mark.parametrize(
        ("task", "words"),
        [
            (Task(3, _examples([0, 0]), _examples([0]), (7,)), "task 3 has 1 class"),
            (Task(3, _examples([]), _examples([0]), (7, 8)), "task 3 has no training samples"),
            (Task(3, _examples([0, 2]), _examples([0]), (7, 8)), "training labels must lie in 0 … 1"),
            (Task(3, _examples([0, -1]), _examples([0]), (7, 8)), "training labels must lie in 0 … 1"),
            (Task(3, _examples([0, 1]), _examples([5]), (7, 8)), "test labels must lie in 0 … 1"),
        ],
    )
    def test_what_cannot_be_learned_is_refused(self, task: Task, words: str) -> None:
        with pytest.raises(KclError, match=words):
            task.check()
