"""scikit-learn's digits: 1,797 images of 8 × 8 pixels that come with the package, for trying things out offline."""

from __future__ import annotations

import importlib.util

import torch
from torch import Tensor

from kcl.data import idx
from kcl.data.dataset import Dataset
from kcl.errors import KclError

BRIGHTEST = 16
CLASSES = 10
INSTALL = 'pip install "kernel-continual-learning[digits]"'
# Of the scaled images and of the labels, in the order of the file, on which the split rests.
IMAGES_MD5 = "b9d1d1ec825aa698a1c345b429230d39"
LABELS_MD5 = "497796a0698e25d3920a9422b635bf34"


def load() -> Dataset:
    """Images uint8 (n, 1, 8, 8), with 0 … 16 spread over 0 … 255; of each class the last fifth, in file order, is test.

    The split is fixed, not drawn, so that every run is scored on the same images.
    """
    images, labels = _read()
    is_test = torch.zeros(len(labels), dtype=torch.bool)
    for digit in range(CLASSES):
        rows = (labels == digit).nonzero().flatten()
        is_test[rows[len(rows) - len(rows) // 5 :]] = True
    inputs = images.unsqueeze(1)
    return Dataset(
        name="digits",
        train_inputs=inputs[~is_test],
        train_labels=labels[~is_test],
        test_inputs=inputs[is_test],
        test_labels=labels[is_test],
        class_names=tuple(str(digit) for digit in range(CLASSES)),
    )


def find() -> str | None:
    """Where the digits lie, without importing scikit-learn, which is slow."""
    return "inside scikit-learn" if importlib.util.find_spec("sklearn") else None


def verify() -> str:
    """Where the digits lie, once they have proved to be the ones known here."""
    images, labels = _read()
    if (idx.digest(images), idx.digest(labels.byte())) != (IMAGES_MD5, LABELS_MD5):
        raise KclError(f"the digits inside scikit-learn are not those expected: install it anew with {INSTALL}")
    return "inside scikit-learn"


def _read() -> tuple[Tensor, Tensor]:
    """All images, (1797, 8, 8), and their labels, in file order."""
    try:
        from sklearn.datasets import load_digits
    except ImportError:
        raise KclError(f"the digits come with scikit-learn, which is missing: {INSTALL}") from None
    bunch = load_digits()
    images = torch.from_numpy(bunch.images)
    return (images * 255 / BRIGHTEST).round().byte(), torch.from_numpy(bunch.target).long()
