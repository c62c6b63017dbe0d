"""miniImageNet: a miniature of the same 100 classes in all three forms, and the real images."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from kcl.benchmarks import registry
from kcl.data import mapped_images, miniimagenet
from kcl.data.dataset import Dataset
from kcl.data.miniimagenet_classes import CLASSES, TEST, TRAIN, VALIDATION
from kcl.errors import KclError

Image = pytest.importorskip("PIL.Image")

# Of the levels 0 … 255 of every tenth training image, by channel; and of the first and the last test image.
MEAN, STD = [120.557, 114.413, 103.471], [71.761, 69.956, 73.205]
ENDS = [188.014, 116.927]


def test_the_classes_are_those_of_the_split() -> None:
    assert [len(part) for part in (TRAIN, VALIDATION, TEST)] == [64, 16, 20]
    assert len(set(CLASSES)) == 100
    assert all(list(part) == sorted(part) for part in (TRAIN, VALIDATION, TEST))
    assert CLASSES[0] == "n01532829"
    assert all(len(name) == 9 and name[0] == "n" for name in CLASSES)


@pytest.fixture
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> np.ndarray:
    """Six images of 8 × 8 a class, five of them to train on; and no data anywhere."""
    for name, value in (("SIDE", 8), ("TRAIN_PER_CLASS", 5), ("PER_CLASS", 6)):
        monkeypatch.setattr(miniimagenet, name, value)
    monkeypatch.delenv("KCL_DATA", raising=False)
    monkeypatch.setenv("KCL_CACHE", str(tmp_path / "cache"))
    return np.random.default_rng(0).integers(0, 256, (100, 6, 8, 8, 3), dtype=np.uint8)


def _lay_folders(folder: Path, images: np.ndarray) -> Path:
    for name, own in zip(CLASSES, images, strict=True):
        (folder / name).mkdir(parents=True)
        for k, image in enumerate(own):
            Image.fromarray(image).save(folder / name / f"{name}_{k:05d}.png")
    return folder


def _pickled(images: np.ndarray, shuffle: bool = False) -> dict[str, dict[str, Any]]:
    """The three files as objects; rows may lie in any order."""
    files, start, random = {}, 0, np.random.default_rng(1)
    for name, classes in miniimagenet.PICKLES.items():
        own = images[start : start + len(classes)].reshape(-1, 8, 8, 3)
        order = random.permutation(len(own)) if shuffle else np.arange(len(own))
        rows = np.argsort(order).reshape(len(classes), 6)
        members = {wnid: rows[k].tolist() for k, wnid in enumerate(classes)}
        files[name] = {"image_data": own[order], "class_dict": members}
        start += len(classes)
    return files


def _lay_pickles(folder: Path, files: dict[str, Any], protocol: int = 2) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (folder / name).write_bytes(pickle.dumps(content, protocol))
    return folder


def _check(dataset: Dataset, images: np.ndarray) -> None:
    expected = torch.from_numpy(images).permute(0, 1, 4, 2, 3)
    assert torch.equal(dataset.train_inputs, expected[:, :5].flatten(0, 1))
    assert torch.equal(dataset.test_inputs, expected[:, 5:].flatten(0, 1))
    assert dataset.train_labels.tolist() == [k for k in range(100) for _ in range(5)]
    assert dataset.test_labels.tolist() == list(range(100))
    assert dataset.class_names == CLASSES
    assert dataset.mean == mapped_images.IMAGENET_MEAN


@pytest.mark.parametrize("layout", ["miniimagenet", "mini-imagenet", "."])
def test_class_folders(small: np.ndarray, tmp_path: Path, layout: str) -> None:
    folder = _lay_folders(tmp_path / "own" / layout, small)
    assert miniimagenet.MINIIMAGENET.find(tmp_path / "own") == folder
    _check(miniimagenet.MINIIMAGENET.load(tmp_path / "own"), small)
    assert miniimagenet.MINIIMAGENET.verify(tmp_path / "own") == folder


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
@pytest.mark.parametrize("shuffle", [False, True])
def test_pickles(small: np.ndarray, tmp_path: Path, protocol: int, shuffle: bool) -> None:
    folder = _lay_pickles(tmp_path / "own" / "miniimagenet", _pickled(small, shuffle), protocol)
    _check(miniimagenet.MINIIMAGENET.load(tmp_path / "own"), small)
    assert miniimagenet.MINIIMAGENET.verify(tmp_path / "own") == folder


def test_it_is_the_same_data_however_it_is_brought(small: np.ndarray, tmp_path: Path) -> None:
    folders, pickles = tmp_path / "folders", tmp_path / "pickles"
    _lay_folders(folders, small)
    _lay_pickles(pickles, _pickled(small))
    file = miniimagenet.MINIIMAGENET.prepare(folders, tmp_path / "prepared")
    assert file == tmp_path / "prepared" / "miniimagenet" / "miniimagenet-84.safetensors"
    identities = {miniimagenet.MINIIMAGENET.load(place).identity for place in (folders, pickles, tmp_path / "prepared")}
    assert len(identities) == 1
    assert miniimagenet.MINIIMAGENET.verify(tmp_path / "prepared") == file


def test_the_prepared_file_needs_neither_folders_nor_pillow_nor_platformdirs(small: np.ndarray, tmp_path: Path) -> None:
    folders = _lay_folders(tmp_path / "own", small)
    file = Path(registry.find_dataset("miniimagenet").prepare(folders, tmp_path / "carried"))
    code = (
        "import sys; sys.modules.update(dict.fromkeys(['PIL', 'platformdirs', 'requests', 'sklearn', 'tqdm']))\n"
        "from pathlib import Path; from kcl.data import miniimagenet as m\n"
        "m.SIDE, m.TRAIN_PER_CLASS, m.PER_CLASS = 8, 5, 6\n"
        "print(m.MINIIMAGENET.load(Path(sys.argv[1])).train_inputs.shape)"
    )
    environment = os.environ | {"PYTHONPATH": str(Path(miniimagenet.__file__).parents[2])}
    command = [sys.executable, "-c", code, str(tmp_path / "carried")]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    assert done.stdout.strip() == "torch.Size([500, 3, 8, 8])"
    in_cache = tmp_path / "cache" / "miniimagenet"
    in_cache.mkdir()
    file.rename(in_cache / file.name)
    assert miniimagenet.MINIIMAGENET.find() == in_cache / file.name
    _check(miniimagenet.MINIIMAGENET.load(), small)


class TestRefused:
    def test_nothing_found_says_what_to_place_where(self, small: np.ndarray, tmp_path: Path) -> None:
        def asks() -> list[Callable[[], Any]]:
            return [
                miniimagenet.MINIIMAGENET.load,
                miniimagenet.MINIIMAGENET.verify,
                miniimagenet.MINIIMAGENET.prepare,
                lambda: registry.find_dataset("miniimagenet").fetch(),
                lambda: miniimagenet.MINIIMAGENET.load(tmp_path),
            ]

        for ask in asks():
            with pytest.raises(KclError) as caught:
                ask()
            for part in (
                "DIR/miniimagenet",
                "--data-dir",
                "KCL_DATA",
                "n01532829",
                *miniimagenet.PICKLES,
                ".safetensors",
            ):
                assert part in str(caught.value)
        source = miniimagenet.MINIIMAGENET
        assert source.where() is None
        assert "DIR/miniimagenet" in source.how_to_get

    def test_a_class_with_too_few_or_too_many_images(self, small: np.ndarray, tmp_path: Path) -> None:
        folder = _lay_folders(tmp_path / "own", small)
        extra = folder / CLASSES[3] / "extra.png"
        Image.fromarray(small[0, 0]).save(extra)
        with pytest.raises(KclError, match=f"class {CLASSES[3]} of miniImageNet has 7 images"):
            miniimagenet.MINIIMAGENET.load(folder)
        extra.unlink()
        (folder / CLASSES[99] / f"{CLASSES[99]}_00000.png").unlink()
        with pytest.raises(KclError, match=f"class {CLASSES[99]} of miniImageNet has 5 images"):
            miniimagenet.MINIIMAGENET.load(folder)

    def test_a_class_that_is_missing(self, small: np.ndarray, tmp_path: Path) -> None:
        folder = _lay_folders(tmp_path / "own", small)
        (folder / CLASSES[50]).rename(folder / "n00000000")
        with pytest.raises(KclError, match=f"class {CLASSES[50]} of miniImageNet has 0 images"):
            miniimagenet.MINIIMAGENET.load(folder)

    @pytest.mark.parametrize(
        ("change", "reason"),
        [
            (lambda file: file.pop("image_data"), "image_data"),
            (lambda file: file.update(image_data=file["image_data"][:-1]), "image_data"),
            (lambda file: file.update(image_data=file["image_data"].astype(np.int16)), "image_data"),
            (lambda file: file.update(image_data=[1, 2, 3]), "image_data"),
            (lambda file: file.pop("class_dict"), "class_dict"),
            (lambda file: file["class_dict"].pop(TEST[0]), "20 classes"),
            (lambda file: file["class_dict"].update({TEST[0]: [1, 2]}), "6 rows for each class"),
            (lambda file: file["class_dict"].update({TEST[0]: [[1], 2, "x"]}), "6 rows for each class"),
            (lambda file: file["class_dict"].update({TEST[0]: None}), "6 rows for each class"),
            (lambda file: file["class_dict"].update({TEST[0]: [0] * 6}), "each row once"),
            (lambda file: file["class_dict"].update({TEST[0]: [-1, 10**6, 1, 2, 3, 4]}), "each row once"),
            (lambda file: file["class_dict"].update({TEST[0]: np.full(6, 2**64 - 1, np.uint64)}), "each row once"),
            (lambda file: file["class_dict"].update(dict.fromkeys(TEST, np.zeros(10**6, bool))), "6 rows for each"),
        ],
    )
    def test_pickles_that_are_not_as_expected(
        self, small: np.ndarray, tmp_path: Path, change: Callable[[Any], Any], reason: str
    ) -> None:
        files = _pickled(small)
        change(files["mini-imagenet-cache-test.pkl"])
        folder = _lay_pickles(tmp_path / "own", files)
        with pytest.raises(KclError, match=f"mini-imagenet-cache-test.pkl.*{reason}"):
            miniimagenet.MINIIMAGENET.load(folder)
        assert not list((tmp_path / "cache").rglob("*.safetensors"))

    def test_a_pickle_that_would_run_code(self, small: np.ndarray, tmp_path: Path) -> None:
        folder = _lay_pickles(tmp_path / "own", _pickled(small))
        harm = tmp_path / "harm"
        (folder / "mini-imagenet-cache-val.pkl").write_bytes(
            b"\x80\x02cposix\nsystem\nU" + bytes([len(f"touch {harm}")]) + f"touch {harm}".encode() + b"\x85R."
        )
        for ask in (miniimagenet.MINIIMAGENET.load, miniimagenet.MINIIMAGENET.verify):
            with pytest.raises(KclError, match=r"cache-val\.pkl is not read: it asks for 'posix\.system'"):
                ask(folder)
        assert not harm.exists()

    def test_a_prepared_file_of_something_else(self, small: np.ndarray, tmp_path: Path) -> None:
        batches = [np.zeros((3, 3, 8, 8), np.uint8)]
        images = mapped_images.ImageSet("other", 8, ("a", "b"), (1, 1), (0, 1), [], lambda: batches)
        mapped_images.write(tmp_path / "miniimagenet-84.safetensors", images, "f" * 64)
        with pytest.raises(KclError, match="not those of miniImageNet"):
            miniimagenet.MINIIMAGENET.load(tmp_path)

    def test_other_datasets_need_no_preparing(self) -> None:
        with pytest.raises(KclError, match="cifar100 needs no preparation"):
            registry.find_dataset("cifar100").prepare()
        with pytest.raises(KclError, match="did you mean miniimagenet"):
            registry.find_dataset("minimagenet").prepare()


@pytest.mark.data
def test_real_images(real_miniimagenet: Dataset) -> None:
    """Decoders differ in the last bit of some pixels, so the images are known by their statistics."""
    dataset = real_miniimagenet
    assert dataset.train_inputs.shape == (50_000, 3, 84, 84)
    assert dataset.test_inputs.shape == (10_000, 3, 84, 84)
    assert dataset.train_inputs.dtype == torch.uint8
    assert dataset.train_labels.bincount().tolist() == [500] * 100
    assert dataset.test_labels.bincount().tolist() == [100] * 100
    assert dataset.class_names == CLASSES
    some = dataset.train_inputs[::10].float()
    torch.testing.assert_close(some.mean((0, 2, 3)), torch.tensor(MEAN), rtol=0, atol=0.05)
    torch.testing.assert_close(some.std((0, 2, 3)), torch.tensor(STD), rtol=0, atol=0.05)
    first = dataset.test_inputs[[0, 9_999]].float().mean((1, 2, 3))
    torch.testing.assert_close(first, torch.tensor(ENDS), rtol=0, atol=0.2)
