from __future__ import annotations

import gzip
import hashlib
import os
import threading
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import torch

from kcl.data import file_cache, mnist
from kcl.data.dataset import Dataset
from kcl.errors import KclError

if TYPE_CHECKING:
    from conftest import Stand

IMAGES = "train-images-idx3-ubyte"
LABELS = "t10k-labels-idx1-ubyte"


def assert_is_stand(dataset: Dataset, stand: Stand) -> None:
    assert torch.equal(dataset.train_inputs, stand.arrays[IMAGES][:, None])
    assert torch.equal(dataset.train_labels, stand.arrays["train-labels-idx1-ubyte"].long())
    assert torch.equal(dataset.test_inputs, stand.arrays["t10k-images-idx3-ubyte"][:, None])
    assert torch.equal(dataset.test_labels, stand.arrays[LABELS].long())


class TestOwnFolder:
    @pytest.mark.parametrize("layout", ["MNIST/raw", "MNIST", "mnist", "."])
    @pytest.mark.parametrize("compressed", [False, True])
    def test_layouts(self, stand: Stand, tmp_path: Path, layout: str, compressed: bool) -> None:
        stand.lay(tmp_path / "own" / layout, compressed)
        assert_is_stand(mnist.MNIST.load(tmp_path / "own"), stand)
        assert not stand.cache.exists()

    def test_each_file_may_be_plain_or_gzipped_by_anyone(self, stand: Stand, tmp_path: Path) -> None:
        folder = stand.lay(tmp_path / "own")
        (folder / f"{IMAGES}.gz").write_bytes(gzip.compress(stand.raw[IMAGES], compresslevel=1))
        (folder / f"{LABELS}.gz").unlink()
        (folder / LABELS).write_bytes(stand.raw[LABELS])
        assert_is_stand(mnist.MNIST.load(tmp_path / "own"), stand)

    def test_argument_comes_before_the_variable(
        self, stand: Stand, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("KCL_DATA", str(tmp_path / "wrong"))
        stand.lay(tmp_path / "own")
        assert mnist.MNIST.find(tmp_path / "own") == tmp_path / "own" / "."

    def test_variable_comes_before_the_cache(
        self, stand: Stand, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("KCL_DATA", str(tmp_path / "own"))
        stand.lay(stand.folder)
        folder = stand.lay(tmp_path / "own" / "MNIST" / "raw")
        assert mnist.MNIST.find() == folder

    def test_argument_without_mnist(self, stand: Stand, tmp_path: Path) -> None:
        stand.lay(stand.folder)
        with pytest.raises(KclError) as caught:
            mnist.MNIST.load(tmp_path / "own")
        for part in (*(str(tmp_path / "own" / layout) for layout in mnist.MNIST.layouts), IMAGES, LABELS):
            assert part in str(caught.value)

    def test_variable_without_all_of_mnist_goes_on_to_the_cache(
        self, stand: Stand, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("KCL_DATA", str(tmp_path / "own"))
        (stand.lay(tmp_path / "own") / f"{LABELS}.gz").unlink()
        stand.lay(stand.folder)
        assert_is_stand(mnist.MNIST.load(say=stand.said.append), stand)
        assert "KCL_DATA=" in stand.said[0]

    @pytest.mark.parametrize("by_variable", [False, True])
    def test_broken_file_is_named_and_left_alone(
        self, stand: Stand, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, by_variable: bool
    ) -> None:
        broken = stand.lay(tmp_path / "own") / f"{IMAGES}.gz"
        broken.write_bytes(broken.read_bytes()[:-20])
        before = sorted(broken.parent.iterdir())
        monkeypatch.setenv("KCL_DATA", str(tmp_path / "own"))
        with pytest.raises(KclError, match=f"{IMAGES}.gz is not a whole"):
            mnist.MNIST.load(None if by_variable else tmp_path / "own")
        assert sorted(broken.parent.iterdir()) == before

    def test_whole_file_with_other_content(self, stand: Stand, tmp_path: Path) -> None:
        forged = stand.lay(tmp_path / "own", compressed=False) / LABELS
        content = bytearray(stand.raw[LABELS])
        content[-1] ^= 1
        forged.write_bytes(content)
        with pytest.raises(KclError, match=f"{LABELS} is not the official {LABELS}: its content has md5"):
            mnist.MNIST.load(tmp_path / "own")


def test_a_bomb_is_read_no_further_than_the_official_size(stand: Stand, tmp_path: Path) -> None:
    folder = stand.lay(tmp_path / "own")
    (folder / f"{LABELS}.gz").write_bytes(gzip.compress(stand.raw[LABELS] + bytes(50_000_000)))
    tracemalloc.start()
    with pytest.raises(KclError, match=f"{LABELS}.gz is not the official"):
        mnist.MNIST.load(tmp_path / "own")
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 2_000_000


class TestCache:
    def test_default_is_the_system_cache(self, stand: Stand, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("KCL_CACHE", "")
        assert file_cache.cache_dir().name == "kcl"

    def test_fetched_once_then_read(
        self, stand: Stand, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, serve: Callable[[Path], str]
    ) -> None:
        monkeypatch.setattr(mnist, "MIRRORS", (serve(stand.lay(tmp_path / "mirror")),))
        assert_is_stand(mnist.MNIST.load(say=stand.said.append), stand)
        assert sorted(path.name for path in stand.folder.iterdir()) == sorted(f.archive.name for f in stand.files)
        assert all(path.stat().st_mode & 0o777 == 0o644 for path in stand.folder.iterdir())
        monkeypatch.setattr(mnist, "MIRRORS", ())
        assert_is_stand(mnist.MNIST.load(), stand)

    @pytest.mark.parametrize("damage", ["truncated", "other content", "empty"])
    def test_broken_file_is_moved_aside_and_fetched_again(
        self, stand: Stand, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, serve: Callable[[Path], str], damage: str
    ) -> None:
        monkeypatch.setattr(mnist, "MIRRORS", (serve(stand.lay(tmp_path / "mirror")),))
        broken = stand.lay(stand.folder) / f"{IMAGES}.gz"
        harm = {
            "truncated": stand.zipped[IMAGES][:-9],
            "other content": gzip.compress(stand.raw[IMAGES][:-1] + b"?"),
            "empty": b"",
        }[damage]
        broken.write_bytes(harm)
        earlier = broken.with_name(f"{broken.name}.broken")
        earlier.write_bytes(b"from before")
        assert_is_stand(mnist.MNIST.load(say=stand.said.append), stand)
        assert str(broken) in stand.said[0]
        assert f"{broken.name}.broken.1" in stand.said[0]
        assert earlier.read_bytes() == b"from before"
        assert broken.with_name(f"{broken.name}.broken.1").read_bytes() == harm
        assert broken.read_bytes() == stand.zipped[IMAGES]

    def test_good_copy_beside_a_broken_one_is_used(self, stand: Stand) -> None:
        stand.lay(stand.folder)
        (stand.folder / LABELS).write_bytes(b"torn")
        assert_is_stand(mnist.MNIST.load(), stand)

    def test_verify_leaves_a_broken_file_alone(self, stand: Stand) -> None:
        broken = stand.lay(stand.folder) / f"{LABELS}.gz"
        broken.write_bytes(b"torn")
        with pytest.raises(KclError, match=f"{LABELS}.gz is not a whole"):
            mnist.MNIST.verify()
        assert broken.read_bytes() == b"torn"

    def test_folder_that_cannot_be_written(self, stand: Stand, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        (tmp_path / "file").write_text("in the way")
        monkeypatch.setenv("KCL_CACHE", str(tmp_path / "file"))
        with pytest.raises(KclError, match=r"cannot be written to .* set KCL_CACHE"):
            mnist.MNIST.load()

    @pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may write anywhere")
    def test_folder_without_permission(self, stand: Stand) -> None:
        stand.folder.mkdir(parents=True)
        stand.folder.chmod(0o500)
        with pytest.raises(KclError, match=r"Permission denied.* set KCL_CACHE"):
            mnist.MNIST.load()
        stand.folder.chmod(0o700)

    def test_many_at_once(
        self, stand: Stand, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, serve: Callable[[Path], str]
    ) -> None:
        monkeypatch.setattr(mnist, "MIRRORS", (serve(stand.lay(tmp_path / "mirror")),))
        (stand.lay(stand.folder) / f"{LABELS}.gz").write_bytes(b"torn")
        (stand.folder / f"{IMAGES}.gz").unlink()
        loaded: list[Dataset] = []
        threads = [threading.Thread(target=lambda: loaded.append(mnist.MNIST.load())) for _ in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(loaded) == 6
        for dataset in loaded:
            assert_is_stand(dataset, stand)
        assert mnist.MNIST.verify() == stand.folder
        assert not list(stand.folder.glob(".fetch-*"))


class TestOffline:
    def test_one_sentence_says_what_to_do(self, stand: Stand) -> None:
        with pytest.raises(KclError) as caught:
            mnist.MNIST.load(say=stand.said.append)
        message = str(caught.value)
        for part in ("could not be downloaded", "DIR/MNIST/raw", "--data-dir", "KCL_DATA", "connect", f"{IMAGES}.gz"):
            assert part in message
        assert "\n" not in message
        assert not any(path.is_file() for path in stand.cache.rglob("*"))

    def test_mirrors_that_refuse_are_asked_once(self, stand: Stand, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("NO_PROXY", "127.0.0.1")
        monkeypatch.setattr(mnist, "MIRRORS", ("http://127.0.0.1:1/", "http://127.0.0.1:2/"))
        start = time.monotonic()
        with pytest.raises(KclError, match="could not be downloaded"):
            mnist.MNIST.load(say=stand.said.append)
        assert time.monotonic() - start < 5
        assert sum("cannot be reached" in line for line in stand.said) == 2

    def test_verify_finds_nothing(self, stand: Stand) -> None:
        assert mnist.MNIST.find() is None
        with pytest.raises(KclError, match="MNIST was not found: put the four files"):
            mnist.MNIST.verify()


@pytest.mark.data
@pytest.mark.skipif(not os.environ.get("KCL_DATA"), reason="KCL_DATA does not name a folder with real MNIST")
def test_real_mnist() -> None:
    dataset = mnist.MNIST.load(Path(os.environ["KCL_DATA"]))
    assert dataset.train_inputs.shape == (60_000, 1, 28, 28)
    assert dataset.test_inputs.shape == (10_000, 1, 28, 28)
    assert dataset.train_inputs.dtype == dataset.test_inputs.dtype == torch.uint8
    assert dataset.train_labels.dtype == dataset.test_labels.dtype == torch.int64
    assert dataset.train_labels.bincount().tolist() == [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
    assert dataset.test_labels.bincount().tolist() == [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]
    assert dataset.train_labels[:8].tolist() == [5, 0, 4, 1, 9, 2, 1, 3]
    # The mean and deviation every MNIST example divides by.
    pixels = dataset.train_inputs.float() / 255
    assert pixels.mean().item() == pytest.approx(0.1307, abs=5e-5)
    assert pixels.std().item() == pytest.approx(0.3081, abs=5e-5)
    assert hashlib.md5(dataset.test_inputs.numpy().tobytes()).hexdigest() == "240610fa99e73bfa49df8e7fc24d3206"
