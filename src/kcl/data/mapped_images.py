"""Decoded images: decoded once into one safetensors file, which is mapped into memory and never read whole.

    train_labels  I64 (n)                     test_labels  I64 (m)
    train_images  U8  (n, 3, side, side)      test_images  U8  (m, 3, side, side)

The metadata hold, as text: `format` ("kcl images 1"), `name` of the dataset, `class_names` (a JSON list), `source` (the
key of what the images were decoded from) and `sha256` of everything after the header.
"""

from __future__ import annotations

import hashlib
import json
import math
import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import safetensors
import torch

from kcl.core.opening import check_readable, reading, regular
from kcl.data.dataset import Dataset
from kcl.data.file_cache import IMAGES, Say, cache_dir, new_file
from kcl.errors import KclError

FORMAT = "kcl images 1"
ALIGNMENT = 64
IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


@dataclass(frozen=True)
class ImageSet:
    """Images to decode: the files that determine them, and how they are read.

    They are ordered by class, all training images before all test images.
    """

    name: str
    side: int
    class_names: tuple[str, ...]
    train_counts: tuple[int, ...]
    """Images of each class."""
    test_counts: tuple[int, ...]
    files: Sequence[Path]
    images: Callable[[], Iterable[np.ndarray]]
    """In batches, (k, 3, side, side) each."""


def write(path: Path, images: ImageSet, source: str) -> None:
    """Write the decoded images to a file; `source` is the key of what they are decoded from.

    Only one batch at a time is in memory, which the safetensors library cannot do. The caller gives the file its final
    name once it is complete.
    """
    count = sum(images.train_counts) + sum(images.test_counts)
    digest, missing = hashlib.sha256(), count * 3 * images.side**2
    with path.open("wb") as file:

        def put(array: np.ndarray) -> int:
            content = np.ascontiguousarray(array).data
            digest.update(content)
            return file.write(content)

        file.write(_header(images, source, sha256="0" * 64))
        for counts in (images.train_counts, images.test_counts):
            put(np.arange(len(counts), dtype="<i8").repeat(counts))
        for batch in images.images():
            missing -= put(batch)
        if missing:
            raise KclError(f"{images.name} does not have the expected {count} images")
        file.seek(0)
        file.write(_header(images, source, digest.hexdigest()))


def read(path: Path) -> tuple[Dataset, str]:
    """The dataset in a file, mapped, and the key of its source; KclError if the file is damaged or of another kind."""
    with _opened(path) as file:
        about, arrays = _metadata(file), dict[str, torch.Tensor]()
        class_names = tuple(json.loads(about["class_names"]))
        for split in ("train", "test"):
            images, labels = (file.get_tensor(f"{split}_{kind}") for kind in ("images", "labels"))
            of_images = images.dtype == torch.uint8 and labels.dtype == torch.int64 and images.ndim == 4
            if not of_images or len(labels) != len(images) or not len(labels):
                raise ValueError(f"its {split} images and labels do not match")
            if not 0 <= int(labels.min()) <= int(labels.max()) < len(class_names):
                raise ValueError(f"its {split} labels do not lie in 0 … {len(class_names) - 1}")
            arrays |= {f"{split}_inputs": images, f"{split}_labels": labels}
        mean, std, identity = IMAGENET_MEAN, IMAGENET_STD, about["sha256"][:16]
        dataset = Dataset(about["name"], **arrays, class_names=class_names, mean=mean, std=std, identity=identity)
        return dataset, about["source"]


def verify(path: Path) -> None:
    """Check every byte of a file against its checksum."""
    with _opened(path) as opened:
        expected = _metadata(opened)["sha256"]
        with path.open("rb") as file:
            file.seek(8 + struct.unpack("<Q", file.read(8))[0])
            actual = hashlib.file_digest(file, "sha256").hexdigest()
        if actual != expected:
            raise ValueError(f"its content has sha256 {actual}, which is not the one its header names")


def _metadata(file: Any) -> dict[str, str]:
    about: dict[str, str] = file.metadata() or {}
    if about.get("format") != FORMAT:
        raise ValueError(f"its format is not {FORMAT!r}")
    return about


def _header(images: ImageSet, source: str, sha256: str) -> bytes:
    about = {"format": FORMAT, "name": images.name, "class_names": json.dumps(images.class_names)}
    header: dict[str, Any] = {"__metadata__": {**about, "source": source, "sha256": sha256}}
    end, pixels = 0, (3, images.side, images.side)
    for kind, dtype, item_bytes, shape in (("labels", "I64", 8, ()), ("images", "U8", 1, pixels)):
        for split, count in (("train", sum(images.train_counts)), ("test", sum(images.test_counts))):
            start, end = end, end + count * math.prod(shape) * item_bytes
            header[f"{split}_{kind}"] = {"dtype": dtype, "shape": [count, *shape], "data_offsets": [start, end]}
    text = json.dumps(header).encode()
    text += b" " * (-(8 + len(text)) % ALIGNMENT)
    return struct.pack("<Q", len(text)) + text


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    """The open file. Any flaw becomes a message that names it."""
    flaws = (ValueError, KeyError, TypeError, RecursionError, safetensors.SafetensorError)
    with reading(path, "a whole file of prepared images", *flaws):
        check_readable(path)
        with safetensors.safe_open(path, framework="pt") as file:
            yield file


def load_cached(images: ImageSet, say: Say) -> tuple[Dataset, Path]:
    """The images from the cache, decoded into it first if need be, and the file that holds them."""
    folder = cache_dir() / IMAGES
    key = _key(images, folder)
    path = folder / f"{images.name}-{images.side}-{key[:16]}.safetensors"
    if path.exists():
        try:
            dataset, source = read(path)
            if source == key:
                return dataset, path
            say(f"{path} holds other images than its name says; decoding them again")
        except KclError as error:
            say(f"{error}; decoding them again")
    count, side = sum(images.train_counts) + sum(images.test_counts), images.side
    say(f"decoding {count} images once, to {side} × {side}: {count * 3 * side**2 / 1e6:.0f} MB in {folder}")
    with new_file(path) as private:
        write(private, images, key)
    return read(path)[0], path


def _key(images: ImageSet, folder: Path) -> str:
    """The hash of every byte of the images' files: the name under which their decoded images are found.

    Hashing all of them at each start would take long for large photographs. So the hash is noted under a list of their
    names, sizes and modification times, and only files that look different are read again.
    """
    about = [images.name, images.side, images.class_names, images.train_counts, images.test_counts]
    key = hashlib.sha256(json.dumps([FORMAT, *about]).encode())
    listing = key.copy()
    with reading(folder):
        for path in images.files:
            status = path.stat()
            line = f"{path.absolute()}\0{status.st_size}\0{status.st_mtime_ns}\0"
            listing.update(line.encode(errors="surrogateescape"))
        note = folder / "known" / listing.hexdigest()
        if note.is_file() and len(known := note.read_text()) == 64:
            return known
        for path in images.files:
            with open(path, "rb", opener=regular) as file:
                key.update(hashlib.file_digest(file, "sha256").digest())
    with new_file(note) as private:
        private.write_text(key.hexdigest())
    return key.hexdigest()
