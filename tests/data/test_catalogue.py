from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from kcl.data import datasets, mnist
from kcl.errors import KclError

if TYPE_CHECKING:
    from conftest import Stand


def test_describe_tells_where_each_dataset_is(stand: Stand, tmp_path: Path) -> None:
    rows = {row.name: row for row in datasets.describe()}
    assert list(rows) == ["mnist", "cifar100", "miniimagenet", "digits"]
    assert rows["mnist"].where == "not found"
    assert "none stated" in rows["mnist"].licence
    stand.lay(stand.folder)
    assert datasets.describe()[0].where == str(stand.folder)
    assert datasets.describe(tmp_path / "own")[0].where == "not found"


def test_fetch_and_verify(
    stand: Stand, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, serve: Callable[[Path], str]
) -> None:
    monkeypatch.setattr(mnist, "MIRRORS", (serve(stand.lay(tmp_path / "mirror")),))
    assert datasets.fetch("mnist", stand.said.append) == str(stand.folder)
    assert stand.said
    assert datasets.verify("mnist") == str(stand.folder)
    with pytest.raises(KclError, match="MNIST was not found under"):
        datasets.verify("mnist", tmp_path / "own")


def test_digits_need_no_fetching() -> None:
    pytest.importorskip("sklearn")
    assert datasets.fetch("digits") == datasets.verify("digits") == "inside scikit-learn"


@pytest.mark.parametrize(
    ("name", "answer"),
    [
        ("minst", "'minst': did you mean mnist\\? kcl knows mnist, cifar100, miniimagenet, digits"),
        ("Digit", "did you mean digits\\?"),
        ("celebrities", "'celebrities': kcl knows mnist, cifar100, miniimagenet, digits"),
    ],
)
def test_unknown_name(name: str, answer: str) -> None:
    for ask in (datasets.fetch, datasets.verify):
        with pytest.raises(KclError, match=answer):
            ask(name)


def test_importing_needs_neither_pooch_nor_scikit_learn() -> None:
    """The core must import with torch and numpy alone."""
    lazy = "['pooch', 'requests', 'sklearn', 'PIL']"
    code = f"import sys; sys.modules.update(dict.fromkeys({lazy})); import kcl.data.datasets"
    subprocess.run([sys.executable, "-c", code], check=True)
