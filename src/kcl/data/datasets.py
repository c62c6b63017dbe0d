"""The datasets kcl knows by name: what each is, under which licence, and how to come by it."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from kcl.data import cifar100, digits, miniimagenet, mnist
from kcl.data.file_cache import quiet
from kcl.errors import KclError


@dataclass(frozen=True)
class Entry:
    """What is told about a dataset, and the three things done with it by name; each answers where the data lies."""

    description: str
    licence: str
    size: str
    how_to_get: str
    find: Callable[[Path | None], str | None]
    fetch: Callable[[Callable[[str], None]], str]
    verify: Callable[[Path | None], str]


@dataclass(frozen=True)
class Row:
    """One line of the list of datasets."""

    name: str
    where: str
    size: str
    licence: str
    how_to_get: str


def describe(data_dir: Path | None = None) -> list[Row]:
    """One row per dataset. Looking is quick: nothing is opened, so `where` does not promise that the data is whole."""
    return [
        Row(name, entry.find(data_dir) or "not found", entry.size, entry.licence, entry.how_to_get)
        for name, entry in DATASETS.items()
    ]


def fetch(name: str, say: Callable[[str], None] = quiet) -> str:
    """Make sure a dataset is here and whole, fetching what is missing, and answer where it lies."""
    return _entry(name).fetch(say)


def verify(name: str, data_dir: Path | None = None) -> str:
    """Check every byte of a dataset and answer where it lies; KclError if it is missing or not what was published."""
    return _entry(name).verify(data_dir)


def prepare(
    name: str, data_dir: Path | None = None, out: Path | None = None, say: Callable[[str], None] = quiet
) -> str:
    """Decode a dataset's images into one file and answer where it lies; only image files need that."""
    _entry(name)
    if name != "miniimagenet":
        raise KclError(f"{name} needs no preparing: its files are read as they are; miniimagenet's are decoded first")
    return str(miniimagenet.prepare(data_dir, out, say=say))


def _entry(name: str) -> Entry:
    if name in DATASETS:
        return DATASETS[name]
    nearest = difflib.get_close_matches(name.lower(), DATASETS, n=3)
    meant = f"did you mean {' or '.join(nearest)}? " if nearest else ""
    raise KclError(f"there is no dataset named {name!r}: {meant}kcl knows {', '.join(DATASETS)}")


def _found(find: Callable[[Path | None], Path | None]) -> Callable[[Path | None], str | None]:
    """Where a dataset is, None where it is not: the list has no errors."""

    def where(data_dir: Path | None) -> str | None:
        try:
            place = find(data_dir)
        except KclError:
            return None
        return None if place is None else str(place)

    return where


def _fetch_mnist(say: Callable[[str], None]) -> str:
    mnist.load(say=say)
    return str(mnist.find())


def _fetch_cifar100(say: Callable[[str], None]) -> str:
    cifar100.load(say=say)
    return str(cifar100.find())


def _fetch_miniimagenet(_: Callable[[str], None]) -> str:
    place = miniimagenet.find()
    if place is None:
        raise KclError(f"kcl does not fetch miniImageNet, as {miniimagenet.NO_FETCHING}: {miniimagenet.PLACE}")
    return str(place)


DATASETS: dict[str, Entry] = {
    "mnist": Entry(
        description="70,000 handwritten digits, 28 × 28 grey pixels, 10 classes (LeCun, Cortes and Burges)",
        licence="none stated by its authors; commonly cited as CC BY-SA 3.0",
        size="60,000 train + 10,000 test, 12 MB to fetch",
        how_to_get="kcl data fetch mnist",
        find=_found(lambda data_dir: mnist.find(data_dir)),
        fetch=_fetch_mnist,
        verify=lambda data_dir: str(mnist.verify(data_dir)),
    ),
    "cifar100": Entry(
        description="60,000 colour photographs, 32 × 32 pixels, 100 classes (Krizhevsky)",
        licence="none stated by its author",
        size="50,000 train + 10,000 test, 169 MB to fetch",
        how_to_get="kcl data fetch cifar100",
        find=_found(lambda data_dir: cifar100.find(data_dir)),
        fetch=_fetch_cifar100,
        verify=lambda data_dir: str(cifar100.verify(data_dir)),
    ),
    "miniimagenet": Entry(
        description="60,000 colour photographs out of ImageNet, 84 × 84 pixels, 100 classes (Vinyals et al.; classes "
        "of Ravi and Larochelle)",
        licence="ImageNet's terms of access: non-commercial research and education",
        size="50,000 train + 10,000 test, 1,270 MB decoded, nothing to fetch",
        how_to_get=f"not to be downloaded, as {miniimagenet.NO_FETCHING}; {miniimagenet.PLACE}",
        find=_found(lambda data_dir: miniimagenet.find(data_dir)),
        fetch=_fetch_miniimagenet,
        verify=lambda data_dir: str(miniimagenet.verify(data_dir)),
    ),
    "digits": Entry(
        description="1,797 handwritten digits, 8 × 8 grey pixels, 10 classes (Alpaydin and Kaynak)",
        licence="as the UCI Machine Learning Repository, its source, states it (data set 80)",
        size="1,442 train + 355 test, nothing to fetch",
        how_to_get=digits.INSTALL,
        find=lambda _data_dir: digits.find(),
        fetch=lambda _say: digits.verify(),
        verify=lambda _data_dir: digits.verify(),
    ),
}
