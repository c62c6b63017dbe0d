"""Decoded images in one safetensors file, which is mapped into memory and never read whole.

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
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import safetensors
import torch

from kcl.data.dataset import Dataset
from kcl.errors import KclError

FORMAT = "kcl images 1"
ALIGNMENT = 64
IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
DTYPES = {"labels": torch.int64, "images": torch.uint8}


class Contents(NamedTuple):
    """What is written with the images: one label per image, and the names of the classes."""

    name: str
    source: str
    class_names: Sequence[str]
    train_labels: np.ndarray
    test_labels: np.ndarray


def write(path: Path, contents: Contents, side: int, images: Iterable[np.ndarray]) -> None:
    """Write a file from batches of images, (k, 3, side, side) each, all training images before all test images.

    Only one batch at a time is in memory, which the safetensors library cannot do. The caller gives the file its final
    name once it is complete.
    """
    count = len(contents.train_labels) + len(contents.test_labels)
    digest, missing = hashlib.sha256(), count * 3 * side * side
    with path.open("wb") as file:

        def put(array: np.ndarray) -> int:
            content = np.ascontiguousarray(array).data
            digest.update(content)
            return file.write(content)

        file.write(_header(contents, side, sha256="0" * 64))
        for labels in (contents.train_labels, contents.test_labels):
            put(labels.astype("<i8"))
        for batch in images:
            missing -= put(batch)
        if missing:
            raise KclError(f"{contents.name} does not have the expected {count} images")
        file.seek(0)
        file.write(_header(contents, side, digest.hexdigest()))


def read(path: Path) -> tuple[Dataset, str]:
    """The dataset in a file, mapped, and the key of its source; KclError if the file is damaged or of another kind."""
    with _errors(path), safetensors.safe_open(path, framework="pt") as file:
        about = _metadata(file)
        arrays = {
            f"{split}_{kind}": file.get_tensor(f"{split}_{kind}") for split in ("train", "test") for kind in DTYPES
        }
        class_names = tuple(json.loads(about["class_names"]))
        for split in ("train", "test"):
            labels, images = arrays[f"{split}_labels"], arrays[f"{split}_images"]
            dtypes = {"labels": labels.dtype, "images": images.dtype}
            if dtypes != DTYPES or len(labels) != len(images) or images.ndim != 4 or not len(labels):
                raise ValueError(f"its {split} images and labels do not match")
            if not 0 <= int(labels.min()) <= int(labels.max()) < len(class_names):
                raise ValueError(f"its {split} labels do not lie in 0 … {len(class_names) - 1}")
        dataset = Dataset(
            name=about["name"],
            train_inputs=arrays["train_images"],
            train_labels=arrays["train_labels"],
            test_inputs=arrays["test_images"],
            test_labels=arrays["test_labels"],
            class_names=class_names,
            mean=IMAGENET_MEAN,
            std=IMAGENET_STD,
            identity=about["sha256"][:16],
        )
        return dataset, about["source"]


def verify(path: Path) -> None:
    """Check every byte of a file against its checksum."""
    with _errors(path):
        with safetensors.safe_open(path, framework="pt") as opened:
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


def _header(contents: Contents, side: int, sha256: str) -> bytes:
    about = {"format": FORMAT, "name": contents.name, "class_names": json.dumps(list(contents.class_names))}
    header: dict[str, Any] = {"__metadata__": {**about, "source": contents.source, "sha256": sha256}}
    end = 0
    for kind, dtype, item_bytes, shape in (("labels", "I64", 8, ()), ("images", "U8", 1, (3, side, side))):
        for split, labels in (("train", contents.train_labels), ("test", contents.test_labels)):
            start, end = end, end + len(labels) * math.prod(shape) * item_bytes
            entry = {"dtype": dtype, "shape": [len(labels), *shape], "data_offsets": [start, end]}
            header[f"{split}_{kind}"] = entry
    text = json.dumps(header).encode()
    text += b" " * (-(8 + len(text)) % ALIGNMENT)
    return struct.pack("<Q", len(text)) + text


@contextmanager
def _errors(path: Path) -> Iterator[None]:
    """Any flaw of a file becomes a message that names it."""
    try:
        yield
    except OSError as error:
        raise KclError(f"{path} cannot be read: {error.strerror or error}") from None
    except (ValueError, KeyError, TypeError, RecursionError, safetensors.SafetensorError) as error:
        raise KclError(f"{path} is not a whole file of prepared images: {error}") from None
