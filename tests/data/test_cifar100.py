"""CIFAR-100: a small stand-in with checksums of its own for everything that can go wrong, and the real files."""

from __future__ import annotations

import hashlib
import io
import os
import pickle
import tarfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from kcl.benchmarks import registry
from kcl.data import cifar100
from kcl.data.dataset import Dataset
from kcl.data.mirrors import PublishedFile
from kcl.errors import KclError

# Of the decoded images, as Python's own unpickling gives them.
TRAIN_SHA256 = "de64658905c6b161606e3649ddafce7cf86c7634a0cf9116d518e64ef46a33c5"
TEST_SHA256 = "83c56492b2c11211ad1bb2dbd4f2eef4170a0441e41a41f3039c3144b1f5a511"


def _archive(members: dict[str, bytes]) -> bytes:
    """A tar.gz that holds these files in the official folder."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for name, content in members.items():
            entry = tarfile.TarInfo(f"cifar-100-python/{name}" if "/" not in name else name)
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
    return buffer.getvalue()


class Stand:
    """The stand-in's files, the cache it would be fetched into, and what was said so far."""

    def __init__(self, cache: Path) -> None:
        random = np.random.default_rng(0)
        self.images = {
            name: random.integers(0, 256, (n, 3072), dtype=np.uint8) for name, n in (("train", 8), ("test", 4))
        }
        self.labels = {name: [int(k) for k in random.integers(0, 100, len(self.images[name]))] for name in self.images}
        self.members = {
            name: pickle.dumps({"fine_labels": self.labels[name], "data": self.images[name]}, 2) for name in self.images
        }
        self.members["meta"] = pickle.dumps({"fine_label_names": [f"class {k}" for k in range(100)]}, 2)
        self.archive = _archive(self.members)
        self.cache, self.said = cache, list[str]()

    @property
    def folder(self) -> Path:
        return self.cache / "cifar-100-python"

    def lay(self, folder: Path) -> Path:
        folder.mkdir(parents=True, exist_ok=True)
        for name, content in self.members.items():
            (folder / name).write_bytes(content)
        return folder

    def lay_archive(self, folder: Path, content: bytes | None = None) -> Path:
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / "cifar-100-python.tar.gz"
        path.write_bytes(self.archive if content is None else content)
        return path

    def check(self, dataset: Dataset) -> None:
        assert torch.equal(dataset.train_inputs, torch.from_numpy(self.images["train"]).view(-1, 3, 32, 32))
        assert torch.equal(dataset.test_inputs, torch.from_numpy(self.images["test"]).view(-1, 3, 32, 32))
        assert dataset.train_labels.tolist() == self.labels["train"]
        assert dataset.test_labels.tolist() == self.labels["test"]
        assert len(dataset.class_names) == 100


def _md5(content: bytes) -> str:
    return hashlib.md5(content).hexdigest()


@pytest.fixture
def stand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Stand:
    stand = Stand(tmp_path / "cache")
    members = tuple(PublishedFile(name, _md5(content), len(content)) for name, content in stand.members.items())
    monkeypatch.setattr(cifar100, "MEMBERS", members)
    monkeypatch.setattr(
        cifar100, "ARCHIVE", PublishedFile("cifar-100-python.tar.gz", _md5(stand.archive), len(stand.archive))
    )
    monkeypatch.setattr(cifar100, "MIRRORS", ())
    monkeypatch.delenv("KCL_DATA", raising=False)
    monkeypatch.setenv("KCL_CACHE", str(stand.cache))
    return stand


@pytest.mark.parametrize("layout", ["cifar-100-python", "."])
def test_the_users_folder_is_read_and_nothing_is_written(stand: Stand, tmp_path: Path, layout: str) -> None:
    stand.lay(tmp_path / "own" / layout)
    stand.check(cifar100.CIFAR100.load(tmp_path / "own"))
    assert cifar100.CIFAR100.verify(tmp_path / "own") == tmp_path / "own" / layout
    assert not stand.cache.exists()


def test_the_users_archive_is_unpacked_into_the_cache(stand: Stand, tmp_path: Path) -> None:
    archive = stand.lay_archive(tmp_path / "own")
    assert cifar100.CIFAR100.find(tmp_path / "own") == cifar100.CIFAR100.verify(tmp_path / "own") == archive
    stand.check(cifar100.CIFAR100.load(tmp_path / "own", say=stand.said.append))
    assert [path.name for path in archive.parent.iterdir()] == [archive.name]
    assert sorted(path.name for path in stand.folder.iterdir()) == ["meta", "test", "train"]
    stand.said.clear()
    stand.check(cifar100.CIFAR100.load(tmp_path / "own", say=stand.said.append))
    assert stand.said == []


def test_the_variable_comes_before_the_cache(stand: Stand, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KCL_DATA", str(tmp_path / "own"))
    stand.lay(stand.folder)
    stand.check(cifar100.CIFAR100.load(say=stand.said.append))
    assert "KCL_DATA=" in stand.said[0]
    folder = stand.lay(tmp_path / "own")
    assert cifar100.CIFAR100.find() == folder


def test_it_is_fetched_once_then_read(
    stand: Stand, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, serve: Callable[[Path], str]
) -> None:
    monkeypatch.setattr(cifar100, "MIRRORS", (serve(stand.lay_archive(tmp_path / "mirror").parent),))
    assert registry.find_dataset("cifar100").fetch(stand.said.append) == str(stand.folder)
    assert sorted(path.name for path in stand.folder.iterdir()) == ["meta", "test", "train"]
    monkeypatch.setattr(cifar100, "MIRRORS", ())
    stand.check(cifar100.CIFAR100.load())
    assert registry.find_dataset("cifar100").verify() == stand.folder


@pytest.mark.parametrize("damage", ["truncated", "other content", "empty"])
def test_a_broken_file_of_the_cache_is_moved_aside_and_fetched_again(
    stand: Stand, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, serve: Callable[[Path], str], damage: str
) -> None:
    monkeypatch.setattr(cifar100, "MIRRORS", (serve(stand.lay_archive(tmp_path / "mirror").parent),))
    whole = stand.members["test"]
    harm = {"truncated": whole[:-9], "other content": whole[:-1] + b"?", "empty": b""}[damage]
    (stand.lay(stand.folder) / "test").write_bytes(harm)
    with pytest.raises(KclError, match="test is not the official test"):
        cifar100.CIFAR100.verify()
    stand.check(cifar100.CIFAR100.load(say=stand.said.append))
    assert "moved aside to test.broken" in stand.said[0]
    assert (stand.folder / "test.broken").read_bytes() == harm


class TestRefused:
    def test_a_folder_without_it(self, stand: Stand, tmp_path: Path) -> None:
        with pytest.raises(KclError) as caught:
            cifar100.CIFAR100.load(tmp_path)
        for part in ("was not found under", "cifar-100-python", "train, test and meta", "cifar-100-python.tar.gz"):
            assert part in str(caught.value)

    @pytest.mark.parametrize("name", ["train", "test", "meta"])
    def test_a_file_that_is_not_the_official_one(self, stand: Stand, tmp_path: Path, name: str) -> None:
        """A pickle that would run code has another checksum; it is not even looked into."""
        (stand.lay(tmp_path / "own") / name).write_bytes(b"cos\nsystem\n(S'touch harm'\ntR.")
        with pytest.raises(KclError, match=f"{name} is not the official {name} of CIFAR-100: it has md5"):
            cifar100.CIFAR100.load(tmp_path / "own")
        assert not stand.cache.exists()

    def test_an_archive_with_another_checksum(self, stand: Stand, tmp_path: Path) -> None:
        stand.lay_archive(tmp_path / "own", stand.archive[:-1] + b"?")
        for ask in (cifar100.CIFAR100.load, cifar100.CIFAR100.verify):
            with pytest.raises(KclError, match=r"tar\.gz is not the official"):
                ask(tmp_path / "own")
        assert not any(path.is_file() for path in stand.cache.rglob("*"))

    def test_offline_one_sentence_says_what_to_do(self, stand: Stand) -> None:
        with pytest.raises(
            KclError, match=r"could not be downloaded: put the folder cifar-100-python .* --data-dir DIR"
        ):
            cifar100.CIFAR100.load(say=stand.said.append)
        with pytest.raises(KclError, match="CIFAR-100 was not found: put the folder"):
            cifar100.CIFAR100.verify()
        assert not any(path.is_file() for path in stand.cache.rglob("*"))

    def test_further_files_of_an_archive_are_left_where_they_are(
        self, stand: Stand, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        content = _archive({**stand.members, "file.txt~": b"", "../evil": b"harm"})
        monkeypatch.setattr(cifar100, "ARCHIVE", PublishedFile(cifar100.ARCHIVE.name, _md5(content), len(content)))
        stand.lay_archive(tmp_path / "own", content)
        stand.check(cifar100.CIFAR100.load(tmp_path / "own"))
        assert sorted(path.name for path in stand.folder.iterdir()) == ["meta", "test", "train"]
        assert not list(tmp_path.rglob("evil"))


@pytest.mark.data
class TestReal:
    def test_every_number_and_byte(self, cifar_dir: Path) -> None:
        dataset = cifar100.CIFAR100.load(cifar_dir)
        assert dataset.train_inputs.shape == (50_000, 3, 32, 32)
        assert dataset.test_inputs.shape == (10_000, 3, 32, 32)
        assert dataset.train_inputs.dtype == dataset.test_inputs.dtype == torch.uint8
        assert dataset.train_labels.bincount().tolist() == [500] * 100
        assert dataset.test_labels.bincount().tolist() == [100] * 100
        assert dataset.train_labels[:5].tolist() == [19, 29, 0, 11, 1]
        assert (dataset.class_names[0], dataset.class_names[99]) == ("apple", "worm")
        digests = [hashlib.sha256(x.numpy().tobytes()).hexdigest() for x in (dataset.train_inputs, dataset.test_inputs)]
        assert digests == [TRAIN_SHA256, TEST_SHA256]
        # The mean and deviation every CIFAR-100 example divides by.
        pixels = dataset.train_inputs.float().div_(255).transpose(0, 1).flatten(1)
        torch.testing.assert_close(pixels.mean(1), torch.tensor([0.5071, 0.4865, 0.4409]), rtol=0, atol=1e-4)

    def test_needs_neither_requests_nor_pillow(self, cifar_dir: Path) -> None:
        import subprocess
        import sys

        code = "import sys; sys.modules.update(dict.fromkeys(['platformdirs', 'requests', 'PIL', 'sklearn', 'tqdm'])); "
        code += "from kcl.data import cifar100; from pathlib import Path; cifar100.CIFAR100.load(Path(sys.argv[1]))"
        environment = os.environ | {"PYTHONPATH": str(Path(cifar100.__file__).parents[2])}
        subprocess.run([sys.executable, "-c", code, str(cifar_dir)], check=True, env=environment)
