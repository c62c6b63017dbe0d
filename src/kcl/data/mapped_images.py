"""Images ready for use, in one file that is mapped into memory and never read whole.

The layout is that of safetensors, so that other programs can open it too: eight bytes with the length of the header
(little-endian), the header (JSON, padded with spaces to a multiple of 64 bytes), then these arrays without gaps:

    train_labels  I64 (n)                     test_labels  I64 (m)
    train_images  U8  (n, 3, side, side)      test_images  U8  (m, 3, side, side)

`__metadata__` in the header holds, as text: `format` ("kcl images 1"), `name` of the dataset, `class_names` (a JSON
list), `source` (the key of what the images were made of) and `sha256` of everything after the header.
"""

from __future__ import annotations

import hashlib
import json
import math
import struct
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from kcl.data.dataset import Dataset
from kcl.errors import KclError

FORMAT = "kcl images 1"
LONGEST_HEADER = 1 << 24
ALIGNMENT = 64
IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
TYPES: dict[str, np.dtype[Any]] = {"I64": np.dtype("<i8"), "U8": np.dtype("u1")}
ARRAYS = {"train_labels": "I64", "test_labels": "I64", "train_images": "U8", "test_images": "U8"}


class Contents(NamedTuple):
    """What is written beside the images: as many labels as images, and the names of the classes they number."""

    name: str
    source: str
    class_names: Sequence[str]
    train_labels: np.ndarray
    test_labels: np.ndarray


def write(path: Path, contents: Contents, side: int, images: Iterable[np.ndarray]) -> None:
    """Write a file from images that come in parts, (k, 3, side, side) each: those to train on, then those to test on.

    They pass through memory one part at a time. The caller gives the file its final name when it is whole.
    """
    counts = len(contents.train_labels), len(contents.test_labels)
    digest, due = hashlib.sha256(), sum(counts) * 3 * side * side
    with path.open("wb") as file:
        file.write(_header(contents, side, sha256="0" * 64))
        for labels in (contents.train_labels, contents.test_labels):
            _put(file, digest, labels.astype(TYPES["I64"]))
        for part in images:
            due -= _put(file, digest, part)
        if due:
            raise KclError(f"{contents.name} has not the {sum(counts)} images it should have")
        file.seek(0)
        file.write(_header(contents, side, digest.hexdigest()))


def read(path: Path) -> tuple[Dataset, str]:
    """The dataset in a file, mapped, and the key of its source; KclError if the file is not whole or another's."""
    with _troubles(path):
        header, mapped = _open(path)
        about, arrays = header["__metadata__"], {name: _array(header, mapped, name) for name in ARRAYS}
        class_names = tuple(json.loads(about["class_names"]))
        for split in ("train", "test"):
            labels, images = arrays[f"{split}_labels"], arrays[f"{split}_images"]
            if len(labels) != len(images) or images.ndim != 4 or not len(labels):
                raise ValueError(f"its {split} images and labels do not go together")
            if not 0 <= labels.min() <= labels.max() < len(class_names):
                raise ValueError(f"its {split} labels do not lie in 0 … {len(class_names) - 1}")
        dataset = Dataset(
            name=about["name"],
            train_inputs=torch.from_numpy(arrays["train_images"]),
            train_labels=torch.from_numpy(arrays["train_labels"]),
            test_inputs=torch.from_numpy(arrays["test_images"]),
            test_labels=torch.from_numpy(arrays["test_labels"]),
            class_names=class_names,
            mean=IMAGENET_MEAN,
            std=IMAGENET_STD,
            identity=about["sha256"][:16],
        )
        return dataset, about["source"]


def verify(path: Path) -> None:
    """Hold every byte of a file against its checksum."""
    with _troubles(path):
        header, mapped = _open(path)
        found = hashlib.sha256(mapped.data).hexdigest()
        if found != header["__metadata__"]["sha256"]:
            raise ValueError(f"its content has sha256 {found}, which is not the one its header names")


def _put(file: Any, digest: Any, array: np.ndarray) -> int:
    content = np.ascontiguousarray(array).data
    digest.update(content)
    return int(file.write(content))


def _header(contents: Contents, side: int, sha256: str) -> bytes:
    shapes = {
        f"{split}_{kind}": shape
        for kind, rest in (("labels", ()), ("images", (3, side, side)))
        for split, labels in (("train", contents.train_labels), ("test", contents.test_labels))
        for shape in [(len(labels), *rest)]
    }
    header: dict[str, Any] = {
        "__metadata__": {
            "format": FORMAT,
            "name": contents.name,
            "class_names": json.dumps(list(contents.class_names)),
            "source": contents.source,
            "sha256": sha256,
        }
    }
    end = 0
    for name, kind in ARRAYS.items():
        start, end = end, end + math.prod(shapes[name]) * TYPES[kind].itemsize
        header[name] = {"dtype": kind, "shape": list(shapes[name]), "data_offsets": [start, end]}
    text = json.dumps(header).encode()
    text += b" " * (-(8 + len(text)) % ALIGNMENT)
    return struct.pack("<Q", len(text)) + text


@contextmanager
def _troubles(path: Path) -> Iterator[None]:
    """Whatever is wrong with a file's header or size becomes a sentence about the file."""
    try:
        yield
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        told = str(error) if type(error) is ValueError else "its header is not as it should be"
        raise KclError(f"{path} is not a whole file of prepared images: {told}") from None
    except OSError as error:
        raise KclError(f"{path} cannot be read: {error.strerror or error}") from None


def _open(path: Path) -> tuple[dict[str, Any], np.ndarray]:
    """The header, and everything after it, mapped: changes would stay in memory, the file is not written to."""
    size = path.stat().st_size
    with path.open("rb") as file:
        start = file.read(8)
        length = struct.unpack("<Q", start)[0] if len(start) == 8 else 0
        if not 0 < length <= min(LONGEST_HEADER, size - 8):
            raise ValueError("it has no header")
        header = json.loads(file.read(length).decode())
    if header["__metadata__"]["format"] != FORMAT:
        raise ValueError(f"its format is not {FORMAT!r}")
    due = 8 + length + max(header[name]["data_offsets"][1] for name in ARRAYS)
    if due != size:
        raise ValueError(f"it has {size} bytes where its header claims {due}")
    return header, np.memmap(path, dtype=np.uint8, mode="c", offset=8 + length)


def _array(header: dict[str, Any], mapped: np.ndarray, name: str) -> np.ndarray:
    entry = header[name]
    start, end = entry["data_offsets"]
    if entry["dtype"] != ARRAYS[name] or not 0 <= start <= end <= len(mapped):
        raise ValueError(f"its {name} are not where and what they should be")
    return mapped[start:end].view(TYPES[ARRAYS[name]]).reshape(entry["shape"])
