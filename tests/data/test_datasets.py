from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from kcl.benchmarks import registry
from kcl.data import cifar100, mnist
from kcl.errors import KclError

if TYPE_CHECKING:
    from conftest import Stand


def test_every_entry_is_complete() -> None:
    assert list(registry.DATASETS) == ["mnist", "cifar100", "miniimagenet", "digits"]
    for name, source in registry.DATASETS.items():
        assert source.name == name
        assert all((source.licence, source.size, source.how_to_get, source.__doc__))


def test_an_entry_with_a_part_missing_cannot_be_made() -> None:
    class Incomplete(mnist.PublishedSource):
        name = size = licence = "made up"

    Incomplete.__abstractmethods__ = frozenset()
    with pytest.raises(TypeError, match="how_to_get"):
        Incomplete()  # type: ignore[abstract]
    with pytest.raises(TypeError, match="abstract"):
        mnist.PublishedSource()  # type: ignore[abstract]


def test_where_a_dataset_is(stand: Stand) -> None:
    assert mnist.MNIST.where() is None
    stand.lay(stand.folder)
    assert mnist.MNIST.where() == str(stand.folder)


def test_fetch_and_verify(
    stand: Stand, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, serve: Callable[[Path], str]
) -> None:
    monkeypatch.setattr(mnist, "MIRRORS", (serve(stand.lay(tmp_path / "mirror")),))
    assert registry.find_dataset("mnist").fetch(stand.said.append) == str(stand.folder)
    assert stand.said
    assert registry.find_dataset("mnist").verify() == stand.folder
    with pytest.raises(KclError, match="MNIST was not found under"):
        registry.find_dataset("mnist").verify(tmp_path / "own")


def test_digits_need_no_fetching() -> None:
    pytest.importorskip("sklearn")
    assert registry.find_dataset("digits").fetch() == registry.find_dataset("digits").verify() == "inside scikit-learn"


@pytest.mark.parametrize(
    ("name", "answer"),
    [
        ("minst", "'minst'.* mnist"),
        ("Digit", "'Digit'.* digits"),
        ("celebrities", "'celebrities'.* mnist, cifar100, miniimagenet, digits"),
    ],
)
def test_unknown_name(name: str, answer: str) -> None:
    with pytest.raises(KclError, match=answer):
        registry.find_dataset(name)


def test_nothing_is_fetched_without_encryption() -> None:
    assert all(mirror.startswith("https://") for mirror in (*mnist.MIRRORS, *cifar100.MIRRORS))


def test_importing_needs_neither_requests_nor_scikit_learn() -> None:
    """The core must import with torch and numpy alone."""
    lazy = "['platformdirs', 'requests', 'sklearn', 'PIL']"
    code = f"import sys; sys.modules.update(dict.fromkeys({lazy})); import kcl.benchmarks.registry"
    subprocess.run([sys.executable, "-c", code], check=True)
