from __future__ import annotations

import sys

import pytest
import torch

from kcl.data import digits
from kcl.errors import KclError


def test_missing_scikit_learn_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    with pytest.raises(KclError, match=r'pip install "kernel-continual-learning\[digits\]"'):
        digits.DIGITS.load()


class TestWithScikitLearn:
    @pytest.fixture(autouse=True)
    def _needs_scikit_learn(self) -> None:
        pytest.importorskip("sklearn")

    def test_images_are_bytes(self) -> None:
        dataset = digits.DIGITS.load()
        assert dataset.train_inputs.shape == (1442, 1, 8, 8)
        assert dataset.test_inputs.shape == (355, 1, 8, 8)
        assert dataset.train_inputs.dtype == torch.uint8
        assert dataset.train_labels.dtype == torch.int64
        # 0 … 16 lands on 17 bytes from black to white, 8 rounding up from 127.5.
        assert dataset.train_inputs.unique().tolist() == [round(value * 255 / 16) for value in range(17)]

    def test_last_fifth_of_each_class_is_test(self) -> None:
        from sklearn.datasets import load_digits

        dataset, bunch = digits.DIGITS.load(), load_digits()
        for digit in range(10):
            values = (dataset.test_inputs[dataset.test_labels == digit, 0].float() * 16 / 255).round()
            own = torch.from_numpy(bunch.images[bunch.target == digit]).float()
            assert len(values) == len(own) // 5
            assert torch.equal(values, own[-len(values) :])
            assert int((dataset.train_labels == digit).sum()) == len(own) - len(values)

    def test_verify(self, monkeypatch: pytest.MonkeyPatch) -> None:
        assert digits.DIGITS.verify() == digits.DIGITS.find() == "inside scikit-learn"
        monkeypatch.setattr(digits, "SHA256", "another")
        with pytest.raises(KclError, match="inside scikit-learn"):
            digits.DIGITS.verify()
