"""scikit-learn's digits: 1,797 images of 8 × 8 pixels that come with the package, for trying things out offline."""

from __future__ import annotations

import hashlib
import importlib.util
from pathlib import Path
from typing import final

import torch
from torch import Tensor

from kcl.core.packages import load_package
from kcl.data.dataset import Dataset
from kcl.data.file_cache import Say, quiet
from kcl.data.source import DataSource
from kcl.errors import KclError

BRIGHTEST = 16
INSTALL = 'pip install "kernel-continual-learning[digits]"'
PLACE = "inside scikit-learn"
SHA256 = "a19cb3d96bba7deace8ee5a513a6eb7bad0403d528f00bf4d351b6a7a55baa91"
"""Of the scaled images and the labels in file order, on which the split depends."""


@final
class DigitsSource(DataSource):
    """1,797 handwritten digits, 8 × 8 grey pixels, 10 classes (Alpaydin and Kaynak)."""

    name = "digits"
    licence = "as the UCI Machine Learning Repository, its source, states it (data set 80)"
    size = "1,442 train + 355 test, nothing to fetch"
    how_to_get = INSTALL

    def load(self, data_dir: Path | str | None = None, say: Say = quiet) -> Dataset:  # noqa: ARG002
        """Images uint8 (n, 1, 8, 8), with 0 … 16 spread over 0 … 255. The last fifth of each class, in file order, is
        the test set: fixed, not drawn, so that every run is tested on the same images.
        """
        if data_dir is not None:
            raise KclError("the digits come with scikit-learn; --data-dir does not apply to them")
        images, labels = _read()
        is_test = torch.zeros(len(labels), dtype=torch.bool)
        for digit in range(10):
            rows = (labels == digit).nonzero().flatten()
            is_test[rows[len(rows) - len(rows) // 5 :]] = True
        inputs = images.unsqueeze(1)
        train, test = ((inputs[rows], labels[rows]) for rows in (~is_test, is_test))
        return Dataset("digits", *train, *test, class_names=tuple("0123456789"))

    def find(self, data_dir: Path | str | None = None) -> str | None:  # noqa: ARG002
        """Without importing scikit-learn, which is slow."""
        return PLACE if importlib.util.find_spec("sklearn") else None

    def verify(self, data_dir: Path | str | None = None) -> str:  # noqa: ARG002
        images, labels = _read()
        if hashlib.sha256(images.numpy().tobytes() + labels.byte().numpy().tobytes()).hexdigest() != SHA256:
            raise KclError(f"the digits inside scikit-learn are not the expected ones: reinstall it with {INSTALL}")
        return PLACE


DIGITS = DigitsSource()


def _read() -> tuple[Tensor, Tensor]:
    """All images, (1797, 8, 8), and their labels, in file order."""
    bunch = load_package(
        "sklearn.datasets", "digits", "the digits come with scikit-learn, which is missing"
    ).load_digits()
    images = torch.from_numpy(bunch.images)
    return (images * 255 / BRIGHTEST).round().byte(), torch.from_numpy(bunch.target).long()
