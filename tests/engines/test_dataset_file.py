"""Dataset files for workers: one content, one file; nothing else is taken for it."""

from __future__ import annotations

from pathlib import Path
from typing import NoReturn

import pytest
import safetensors.torch
import torch

from kcl.data.dataset import Dataset
from kcl.engines import dataset_file
from kcl.errors import KclError


def _dataset(first: int = 0) -> Dataset:
    inputs = torch.arange(first, first + 24, dtype=torch.uint8).view(6, 1, 2, 2)
    return Dataset("made up", inputs[:4], torch.tensor([0, 1, 0, 1]), inputs[4:], torch.tensor([0, 1]), ("a", "b"),
                   (0.1,), (0.2,), "an identity")  # fmt: skip


def _never() -> NoReturn:
    raise AssertionError("it is here already")


def test_what_is_unpacked_is_what_was_packed(tmp_path: Path) -> None:
    dataset = _dataset()
    digest, path = dataset_file.pack(dataset, tmp_path / "here")
    assert dataset_file.pack(dataset, tmp_path / "here") == (digest, path)
    found = dataset_file.unpack(digest, path.read_bytes, tmp_path / "there")
    for name in dataset_file.ARRAYS:
        assert torch.equal(getattr(found, name), getattr(dataset, name))
        assert getattr(found, name).dtype == getattr(dataset, name).dtype
    assert (found.name, found.class_names, found.mean, found.std, found.identity) == (
        dataset.name, dataset.class_names, dataset.mean, dataset.std, dataset.identity
    )  # fmt: skip
    dataset_file.unpack(digest, _never, tmp_path / "there")


def test_other_content_has_another_name(tmp_path: Path) -> None:
    names = {dataset_file.pack(_dataset(first), tmp_path)[0] for first in (0, 1, 2)}
    assert len(names) == 3


def test_wrong_or_broken_content_is_refused_and_not_kept(tmp_path: Path) -> None:
    digest, _ = dataset_file.pack(_dataset(), tmp_path / "here")
    other = dataset_file.pack(_dataset(1), tmp_path / "here")[1]
    with pytest.raises(KclError, match="does not match the digest"):
        dataset_file.unpack(digest, other.read_bytes, tmp_path / "there")
    with pytest.raises(KclError, match="damaged"):
        dataset_file.unpack(digest, lambda: other.read_bytes()[:50], tmp_path / "there")
    assert not list((tmp_path / "there").rglob("*.safetensors"))
    with pytest.raises(KclError, match="cannot be read here"):
        dataset_file.unpack(digest, lambda: tmp_path / "missing", tmp_path / "there")


def test_a_full_disk_as_safetensors_tells_it_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its errors are no OSError."""

    def full(*_: object) -> NoReturn:
        raise safetensors.SafetensorError("I/O error: No space left on device (os error 28)")

    monkeypatch.setattr(safetensors.torch, "save_file", full)
    with pytest.raises(KclError, match="No space left"):
        dataset_file.pack(_dataset(), tmp_path)
    assert not any(path.is_file() for path in tmp_path.rglob("*"))
