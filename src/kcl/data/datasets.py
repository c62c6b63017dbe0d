"""The datasets that kcl knows by name. An entry is a `DataSource`, which cannot be made with a part missing."""

from __future__ import annotations

from kcl.core.settings import nearest
from kcl.data.cifar100 import CIFAR100
from kcl.data.digits import DIGITS
from kcl.data.miniimagenet import MINIIMAGENET
from kcl.data.mnist import MNIST
from kcl.data.source import DataSource
from kcl.errors import KclError

DATASETS: dict[str, DataSource] = {source.name: source for source in (MNIST, CIFAR100, MINIIMAGENET, DIGITS)}


def find_dataset(name: str) -> DataSource:
    if name not in DATASETS:
        raise KclError(f"unknown dataset {name!r}; {nearest(name, list(DATASETS))}")
    return DATASETS[name]
