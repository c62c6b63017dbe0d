"""A user's own images: what is found, what is refused, how they are decoded, and the cache that keeps them."""

from __future__ import annotations

import hashlib
import io
import json
import os
import struct
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import kcl
from kcl.data import file_cache, image_files, image_folders, mapped_images
from kcl.errors import KclError

Image = pytest.importorskip("PIL.Image")

RANDOM = np.random.default_rng(0)


def _picture(side: int = 8, level: int = 100) -> Any:
    return Image.fromarray(RANDOM.integers(level, level + 50, (side, side, 3), dtype=np.uint8))


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("KCL_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def make(tmp_path: Path, cache: Path) -> Callable[..., Path]:
    """A folder of classes, each with so many pictures, in PNG and JPEG and WebP by turns."""

    def lay(folder: str = "own", side: int = 8, **counts: int) -> Path:
        for place, (name, count) in enumerate(counts.items()):
            (tmp_path / folder / name).mkdir(parents=True)
            for k in range(count):
                suffix = ("png", "jpg", "JPEG", "webp")[k % 4]
                _picture(side, 40 * place).save(tmp_path / folder / name / f"{k:03d}.{suffix}")
        return tmp_path / folder

    return lay


class TestLayouts:
    def test_the_last_sixth_of_every_class_is_for_testing(self, make: Any) -> None:
        train, test = image_folders.split(make(cat=12, dog=7, eel=3))
        assert [(name, len(paths)) for name, paths in train.items()] == [("cat", 10), ("dog", 6), ("eel", 2)]
        assert [path.name for path in test["cat"]] == ["010.JPEG", "011.webp"]
        assert [len(paths) for paths in test.values()] == [2, 1, 1]
        for name in train:
            assert not set(train[name]) & set(test[name])
            assert sorted(train[name] + test[name]) == train[name] + test[name]

    def test_train_and_test_may_be_folders(self, make: Any) -> None:
        make("own/train", cat=4, dog=2)
        root = make("own/test", cat=1, dog=3).parent
        train, test = image_folders.split(root)
        assert [len(paths) for paths in train.values()] == [4, 2]
        assert [len(paths) for paths in test.values()] == [1, 3]
        assert {path.parent.parent.name for path in train["cat"]} == {"train"}

    def test_the_dataset_holds_what_the_files_hold(self, make: Any) -> None:
        root = make(dog=6, cat=12)
        dataset = image_folders.load(root, side=8)
        assert dataset.class_names == ("cat", "dog")
        assert dataset.train_labels.tolist() == [0] * 10 + [1] * 5
        assert dataset.test_labels.tolist() == [0] * 2 + [1]
        assert dataset.train_inputs.dtype == torch.uint8
        for row, path in enumerate(image_folders.split(root)[0]["cat"]):
            expected = np.asarray(Image.open(path).convert("RGB")).transpose(2, 0, 1)
            assert np.array_equal(dataset.train_inputs[row].numpy(), expected)
        assert dataset.mean == mapped_images.IMAGENET_MEAN

    def test_what_is_no_image_is_left_out_and_told_in_one_line(self, make: Any) -> None:
        root, said = make(cat=3, dog=3), list[str]()
        (root / "README.md").write_text("mine")
        (root / "cat" / "notes.txt").write_text("mine")
        (root / "cat" / "deeper").mkdir()
        for litter in (".DS_Store", "cat/Thumbs.db", "cat/.hidden.png"):
            (root / litter).write_text("litter")
        (root / ".git").mkdir()
        dataset = image_folders.load(root, side=8, say=said.append)
        assert len(dataset.train_labels) == 4
        [line] = [line for line in said if "skipped" in line]
        assert "and 2 more" in line
        assert "litter" not in line


class TestRefused:
    @pytest.mark.parametrize(
        ("counts", "reason"),
        [
            ({"cat": 2, "dog": 9}, "class 'cat' of .* has 1 images to train on and needs 2"),
            ({"cat": 0, "dog": 9}, "class 'cat' of .* has 0 images to train on"),
            ({"cat": 9}, "holds 1 class folders"),
        ],
    )
    def test_too_few(self, make: Any, counts: dict[str, int], reason: str) -> None:
        with pytest.raises(KclError, match=reason):
            image_folders.load(make(**counts))

    def test_a_folder_that_is_not_there(self, tmp_path: Path, cache: Path) -> None:
        with pytest.raises(KclError, match="nowhere is not a folder"):
            image_folders.load(tmp_path / "nowhere")

    def test_one_of_train_and_test(self, make: Any) -> None:
        root = make("own/train", cat=4, dog=2).parent
        with pytest.raises(KclError, match="one of the folders train and test"):
            image_folders.load(root)
        make("own/test", cat=1, eel=1)
        with pytest.raises(KclError, match="only: dog, eel; expected the same"):
            image_folders.load(root)

    def test_a_class_without_test_images(self, make: Any) -> None:
        make("own/train", cat=4, dog=2)
        root = make("own/test", cat=1, dog=0).parent
        with pytest.raises(KclError, match=r"class 'dog' of .* has 0 images to test on and needs 1"):
            image_folders.load(root)

    @pytest.mark.parametrize("side", [7, 0, -1, 1025])
    def test_a_size_out_of_range(self, make: Any, side: int) -> None:
        with pytest.raises(KclError, match="the image size must lie in 8 … 1024"):
            image_folders.load(make(cat=3, dog=3), side)

    @pytest.mark.parametrize("kind", ["truncated", "text", "empty", "gif", "one byte of many"])
    def test_a_broken_image_is_named_and_nothing_is_left(self, make: Any, cache: Path, kind: str) -> None:
        root = make(cat=6, dog=6, side=64)
        broken = root / "dog" / "001.jpg"
        whole = broken.read_bytes()
        other = io.BytesIO()
        _picture().save(other, "GIF")
        harm = {"truncated": whole[: len(whole) // 2], "text": b"hello", "empty": b"", "gif": other.getvalue()}
        broken.write_bytes(harm.get(kind, whole[:2] + b"\x00" + whole[3:]))
        with pytest.raises(KclError, match=r"dog/001\.jpg cannot be read as a JPEG, PNG or WebP image"):
            image_folders.load(root)
        assert not list(cache.rglob("*.safetensors"))
        assert not list(cache.rglob(".fetch-*"))

    def test_a_bomb(self, make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        root = make(cat=3, dog=3)
        for pixels in (60, 20):  # where Pillow would warn, and where it would refuse
            monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", pixels)
            with pytest.raises(KclError, match=f"has more than {pixels} pixels"):
                image_folders.load(root, side=8)

    def test_without_pillow_it_says_what_to_install(self, make: Any) -> None:
        code = (
            "import sys; sys.modules['PIL'] = None; from pathlib import Path; from kcl.data import image_folders\n"
            "try: image_folders.load(Path(sys.argv[1]))\nexcept Exception as error: print(type(error).__name__, error)"
        )
        environment = os.environ | {"PYTHONPATH": str(Path(kcl.__file__).parents[1])}
        command = [sys.executable, "-c", code, str(make(cat=3, dog=3))]
        done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
        assert done.stdout.startswith("KclError reading image files needs Pillow")
        assert "[images]" in done.stdout


class TestDecoding:
    def _decoded(self, image: Any, path: Path, side: int = 8, **options: Any) -> np.ndarray:
        image.save(path, **options)
        return image_files.decode(path, side)

    def test_grey_becomes_three_equal_channels(self, tmp_path: Path) -> None:
        for suffix in ("png", "jpg"):
            found = self._decoded(_picture().convert("L"), tmp_path / f"a.{suffix}")
            assert found.shape == (3, 8, 8)
            assert (found[0] == found[1]).all()
            assert (found[0] == found[2]).all()

    @pytest.mark.parametrize("mode", ["RGBA", "LA", "P", "1"])
    def test_other_modes_become_colour(self, tmp_path: Path, mode: str) -> None:
        image = _picture().convert(mode)
        assert np.array_equal(
            self._decoded(image, tmp_path / "a.png"), np.asarray(image.convert("RGB")).transpose(2, 0, 1)
        )

    def test_a_palette_with_transparency_becomes_colour_without_a_word(self, tmp_path: Path) -> None:
        image = _picture().convert("P")
        found = self._decoded(image, tmp_path / "a.png", transparency=bytes(range(200)))
        assert np.array_equal(found, np.asarray(image.convert("RGB")).transpose(2, 0, 1))

    def test_sixteen_bits_of_grey_keep_the_upper_eight(self, tmp_path: Path) -> None:
        values = np.arange(64, dtype=np.uint16).reshape(8, 8) * 1000
        found = self._decoded(Image.fromarray(values), tmp_path / "a.png")
        assert np.array_equal(found[1], (values >> 8).astype(np.uint8))

    def test_cmyk_becomes_colour(self, tmp_path: Path) -> None:
        assert self._decoded(Image.new("CMYK", (8, 8)), tmp_path / "a.jpg").mean() > 250

    def test_an_image_is_turned_as_its_exif_says(self, tmp_path: Path) -> None:
        image = Image.new("RGB", (16, 16))
        image.paste((255, 255, 255), (0, 0, 16, 8))  # the upper half is white
        exif = Image.Exif()
        exif[0x0112] = 6  # to be turned clockwise by a quarter
        found = self._decoded(image, tmp_path / "a.png", 16, exif=exif.tobytes())
        assert found[0, :, 8:].mean() == 255
        assert found[0, :, :8].mean() == 0

    def test_the_largest_square_in_the_middle_is_taken(self, tmp_path: Path) -> None:
        wide = Image.new("RGB", (30, 10))
        wide.paste((255, 255, 255), (10, 0, 20, 10))
        assert self._decoded(wide, tmp_path / "wide.png", 10).min() == 255
        assert self._decoded(wide.rotate(90, expand=True), tmp_path / "tall.png", 10).min() == 255


class TestCache:
    def test_a_second_start_reads_no_image(self, make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        root, said = make(cat=6, dog=6), list[str]()
        first = image_folders.load(root, side=8, say=said.append)
        assert "decoding 12 images once" in said[0]
        monkeypatch.setattr(hashlib, "file_digest", None)
        monkeypatch.setattr(image_files, "decode_all", None)
        again = image_folders.load(root, side=8, say=said.append)
        assert len(said) == 1
        assert torch.equal(first.train_inputs, again.train_inputs)
        assert first.identity == again.identity

    def test_the_same_content_elsewhere_is_not_decoded_again(self, make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        root = make(cat=6, dog=6)
        first = image_folders.load(root, side=8)
        monkeypatch.setattr(image_files, "decode_all", None)
        moved = root.rename(root.with_name("moved"))
        for path in moved.rglob("*.*"):
            os.utime(path, (1, 1))
        assert image_folders.load(moved, side=8).identity == first.identity

    def test_changed_content_is_decoded_anew(self, make: Any) -> None:
        root = make(cat=6, dog=6)
        first = image_folders.load(root, side=8)
        _picture(8, 200).save(root / "cat" / "000.png")
        changed = image_folders.load(root, side=8)
        assert not torch.equal(first.train_inputs[0], changed.train_inputs[0])
        assert torch.equal(first.train_inputs[1:], changed.train_inputs[1:])
        assert first.identity != changed.identity
        assert image_folders.load(root, side=9).train_inputs.shape[-1] == 9

    @pytest.mark.parametrize("damage", ["truncated", "longer", "foreign", "empty", "another source", "header"])
    def test_a_broken_file_is_recognised_and_made_again(self, make: Any, cache: Path, damage: str) -> None:
        root, said = make(cat=6, dog=6), list[str]()
        first = image_folders.load(root, side=8)
        kept, [path] = first.train_inputs.clone(), list(cache.rglob("*.safetensors"))
        whole = path.read_bytes()
        key = mapped_images.read(path)[1]
        harm = {
            "truncated": whole[:-1],
            "longer": whole + b"?",
            "foreign": b"\x20" + bytes(7) + b"{}" + b" " * 30,
            "empty": b"",
            "another source": whole.replace(key.encode(), b"0" * 64),
            "header": struct.pack("<Q", 2**62) + whole[8:],
        }[damage]
        path.unlink()
        path.write_bytes(harm)
        again = image_folders.load(root, side=8, say=said.append)
        assert "decoding" in said[0]
        assert torch.equal(again.train_inputs, kept)
        assert path.read_bytes() == whole

    def test_the_files_are_never_written_to(self, make: Any, cache: Path) -> None:
        dataset = image_folders.load(make(cat=6, dog=6), side=8)
        [path] = cache.rglob("*.safetensors")
        before = path.read_bytes()
        dataset.train_inputs.zero_()
        assert path.read_bytes() == before
        mapped_images.verify(path)

    def test_verification_finds_one_changed_bit(self, make: Any, cache: Path) -> None:
        image_folders.load(make(cat=6, dog=6), side=8)
        [path] = cache.rglob("*.safetensors")
        content = bytearray(path.read_bytes())
        content[-5] ^= 1
        path.write_bytes(content)
        with pytest.raises(KclError, match="its content has sha256"):
            mapped_images.verify(path)

    def test_how_large_it_is_and_that_it_can_be_cleared(self, make: Any, cache: Path) -> None:
        assert file_cache.usage() == (cache, 0)
        image_folders.load(make(cat=6, dog=6), side=8)
        folder, size = file_cache.usage()
        assert size > 12 * 3 * 64
        assert file_cache.clear() == (folder, size)
        assert not list(folder.rglob("*.safetensors"))
        assert file_cache.clear()[1] == 0

    def test_many_at_once(self, make: Any) -> None:
        root, loaded = make(cat=6, dog=6), list[Any]()
        threads = [threading.Thread(target=lambda: loaded.append(image_folders.load(root, side=8))) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len({dataset.identity for dataset in loaded}) == 1
        assert len(loaded) == 4

    def test_a_folder_that_cannot_be_written(self, make: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        (tmp_path / "file").write_text("in the way")
        monkeypatch.setenv("KCL_CACHE", str(tmp_path / "file"))
        with pytest.raises(KclError, match=r"cannot be written to .* set KCL_CACHE"):
            image_folders.load(make(cat=3, dog=3))


class TestPrepared:
    """The file itself, as its docstring describes it."""

    def _write(self, path: Path, images: int = 5) -> Path:
        parts = [RANDOM.integers(0, 256, (1, 3, 4, 4), dtype=np.uint8) for _ in range(images)]
        image_set = mapped_images.ImageSet("made up", 4, ("a", "b"), (1, 2), (1, 1), [], lambda: parts)
        mapped_images.write(path, image_set, "f" * 64)
        return path

    def test_is_as_safetensors_describes_it(self, tmp_path: Path) -> None:
        content = self._write(tmp_path / "a").read_bytes()
        (length,) = struct.unpack("<Q", content[:8])
        header = json.loads(content[8 : 8 + length])
        assert (8 + length) % 64 == 0
        assert header["__metadata__"]["format"] == "kcl images 1"
        end = 0
        for name in ("train_labels", "test_labels", "train_images", "test_images"):
            start, stop = header[name]["data_offsets"]
            assert start == end
            end = stop
        assert len(content) == 8 + length + end
        labels = np.frombuffer(content[8 + length :][: header["train_labels"]["data_offsets"][1]], "<i8")
        assert labels.tolist() == [0, 1, 1]

    def test_other_programs_can_open_it(self, tmp_path: Path) -> None:
        numpy = pytest.importorskip("safetensors.numpy")
        arrays = numpy.load_file(self._write(tmp_path / "a"))
        dataset, _ = mapped_images.read(tmp_path / "a")
        assert np.array_equal(arrays["test_images"], dataset.test_inputs.numpy())
        assert arrays["test_labels"].tolist() == [0, 1]

    def test_the_number_of_images_must_be_that_of_the_labels(self, tmp_path: Path) -> None:
        for images in (4, 6):
            with pytest.raises(KclError, match="5 images"):
                self._write(tmp_path / "a", images)

    @pytest.mark.parametrize(
        ("find", "put"),
        [
            (b'"dtype": "I64"', b'"dtype": "F64"'),
            (b'"shape": [3, 3, 4, 4]', b'"shape": [3, 3, 4, 5]'),
            (b'"class_names"', b'"class_xames"'),
            (b'\\"a\\", \\"b\\"', b'\\"a\\"        '),
            (b'"__metadata__"', b'"__metadatx__"'),
            (b"kcl images 1", b"kcl images 9"),
            (b"{", b"["),
        ],
    )
    def test_a_changed_header_is_refused(self, tmp_path: Path, find: bytes, put: bytes) -> None:
        path = self._write(tmp_path / "a")
        content = path.read_bytes()
        assert find in content
        path.write_bytes(content.replace(find, put, 1))
        with pytest.raises(KclError, match="is not a whole file of prepared images"):
            mapped_images.read(path)

    def test_cut_anywhere_it_is_refused(self, tmp_path: Path) -> None:
        content = self._write(tmp_path / "a").read_bytes()
        for length in range(0, len(content), 41):
            (tmp_path / "b").write_bytes(content[:length])
            with pytest.raises(KclError, match="is not a whole file of prepared images"):
                mapped_images.read(tmp_path / "b")
