"""Training samples held out: every class, none twice, and nothing of the test data."""

from __future__ import annotations

import pytest
import torch

from kcl.data.dataset import Dataset
from kcl.errors import KclError
from kcl.experiments.admission import with_held_out


def _dataset() -> Dataset:
    """Every sample holds its own number; those of the test data are negative."""
    labels = torch.arange(100) % 4
    return Dataset(
        "numbers",
        torch.arange(100.0).unsqueeze(1),
        labels,
        -1.0 - torch.arange(20.0).unsqueeze(1),
        torch.arange(20) % 4,
        ("a", "b", "c", "d"),
    )


def test_the_parts_make_the_training_data_and_nothing_else() -> None:
    before = _dataset()
    after = with_held_out(before, 0.2)
    learned, judged = after.train_inputs.flatten().tolist(), after.test_inputs.flatten().tolist()
    assert sorted(learned + judged) == list(map(float, range(100)))
    assert after.test_labels.bincount().tolist() == [5, 5, 5, 5]
    for inputs, labels in ((after.train_inputs, after.train_labels), (after.test_inputs, after.test_labels)):
        assert torch.equal(before.train_labels[inputs.flatten().long()], labels)


def test_the_same_are_held_out_whatever_the_test_data_are() -> None:
    one, two = _dataset(), _dataset()
    two.test_inputs.fill_(7.0)
    assert torch.equal(with_held_out(one, 0.3).test_inputs, with_held_out(two, 0.3).test_inputs)


@pytest.mark.parametrize("share", [0.0, 1.0, -0.1, 0.001, 0.999])
def test_shares_that_leave_nothing_are_refused(share: float) -> None:
    with pytest.raises(KclError):
        with_held_out(_dataset(), share)
