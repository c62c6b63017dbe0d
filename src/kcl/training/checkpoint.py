"""Checkpoint files: tensors and metadata, written atomically and verified when read.

The layout is that of safetensors: eight bytes with the length of the header, the header (JSON), the tensors. The
header's `__metadata__` holds, as text: `format`, `about` (JSON: everything that is not a tensor) and `sha256` of the
whole file with these 64 digits as zeros. So a truncated or altered file is detected before it is used, lengths are
checked against the file size before memory is allocated, and a file contains nothing that could be executed.
"""

from __future__ import annotations

import hashlib
import json
import os
import struct
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import safetensors
import safetensors.numpy
import torch
from torch import Tensor

from kcl.core.files import write_whole
from kcl.core.opening import regular
from kcl.errors import KclError

FORMAT = "kcl checkpoint 1"
LONGEST_HEADER = 1 << 26
LARGEST = 1 << 36
BLOCK = 1 << 20
_NO_DIGEST = b"0" * 64

Tree = dict[str, Any]
"""Tensors by name, in nested dictionaries."""


class Saved(NamedTuple):
    """The content of a checkpoint."""

    tensors: Tree
    about: dict[str, Any]


def write(path: Path, saved: Saved) -> None:
    """Write a checkpoint to disk completely, or raise KclError and write nothing."""
    about = json.dumps(saved.about, allow_nan=False)
    metadata = {"format": FORMAT, "sha256": _NO_DIGEST.decode(), "about": about}
    arrays = {name: tensor.detach().cpu().contiguous().numpy() for name, tensor in _flat(saved.tensors)}
    content = bytearray(safetensors.numpy.save(arrays, metadata))
    digest = hashlib.sha256(content).hexdigest().encode()
    place = _digest_place(content[: 8 + struct.unpack("<Q", content[:8])[0]])
    content[place : place + 64] = digest
    write_whole(path, content)


def read(path: Path) -> Saved:
    """Read a checkpoint; KclError if it is incomplete, damaged or of another format."""
    try:
        about = _verify(path)
        with safetensors.safe_open(path, framework="np") as file:
            tensors = {name: torch.from_numpy(np.array(file.get_tensor(name))) for name in file.keys()}  # noqa: SIM118
        return Saved(_nested(tensors), about)
    except OSError as error:
        raise KclError(f"{path} cannot be read: {error.strerror or error}") from None
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, safetensors.SafetensorError) as error:
        reason = error if type(error) is ValueError else "its header is malformed"
        raise KclError(f"{path} is not a complete checkpoint: {reason}") from None


def _verify(path: Path) -> dict[str, Any]:
    """Check a file against its own header and digest, one block at a time; returns its `about`."""
    with open(path, "rb", opener=regular) as file:
        size = os.fstat(file.fileno()).st_size
        start = file.read(8)
        length = struct.unpack("<Q", start)[0] if len(start) == 8 else 0
        if not 0 < length <= min(LONGEST_HEADER, size - 8) or size > LARGEST:
            raise ValueError("it has no header or is too large")
        header = file.read(length)
        metadata = json.loads(header.decode())["__metadata__"]
        if metadata["format"] != FORMAT:
            raise ValueError(f"its format is {str(metadata['format'])[:40]!r}, this version of kcl reads {FORMAT!r}")
        plain = bytearray(start + header)
        place = _digest_place(plain)
        expected, plain[place : place + 64] = bytes(plain[place : place + 64]), _NO_DIGEST
        digest = hashlib.sha256(plain)
        while block := file.read(BLOCK):
            digest.update(block)
    if digest.hexdigest().encode() != expected or metadata["sha256"].encode() != expected:
        raise ValueError("its content does not match its sha256: it was truncated or changed")
    about = json.loads(metadata["about"])
    if not isinstance(about, dict):
        raise ValueError("its description is missing")
    return about


def _digest_place(header: bytes | bytearray) -> int:
    """Where the 64 digits begin: the only place where `"sha256":"` occurs unescaped."""
    place = header.find(b'"sha256":"')
    if place < 0:
        raise ValueError("it has no sha256")
    return place + len(b'"sha256":"')


def _flat(tree: Tree, prefix: str = "") -> Iterator[tuple[str, Tensor]]:
    for name, value in tree.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{name}/")
        else:
            yield prefix + name, value


def _nested(tensors: Mapping[str, Tensor]) -> Tree:
    tree: Tree = {}
    for path, tensor in tensors.items():
        *folders, name = path.split("/")
        inner = tree
        for folder in folders:
            inner = inner.setdefault(folder, {})
            if not isinstance(inner, dict):
                raise ValueError("one of its tensors lies within another")
        inner[name] = tensor
    return tree


def digest(tree: Tree) -> str:
    """A hash of tensors and their names."""
    sha256 = hashlib.sha256()
    for name, tensor in sorted(_flat(tree), key=lambda item: item[0]):
        array = tensor.detach().cpu().contiguous().numpy()
        sha256.update(f"{name} {array.dtype.str} {array.shape}\n".encode())
        sha256.update(array.data if array.size else b"")
    return sha256.hexdigest()


def fit_all(saved: Any, like: Mapping[str, Tensor], what: str) -> dict[str, Tensor]:
    """Tensors of a checkpoint by name, checked to have the names, shapes and data types that the run needs."""
    tensors = saved if isinstance(saved, dict) else {}
    if unknown := sorted(tensors.keys() - like.keys())[:3]:
        raise KclError(f"the checkpoint does not fit the run: {what} has unexpected entries {unknown}")
    for name, needed in like.items():
        tensor = tensors.get(name)
        if not isinstance(tensor, Tensor) or tensor.shape != needed.shape or tensor.dtype != needed.dtype:
            actual = f"{tensor.dtype} {tuple(tensor.shape)}" if isinstance(tensor, Tensor) else "missing"
            expected = f"{needed.dtype} {tuple(needed.shape)}"
            raise KclError(f"the checkpoint does not fit the run: {what}/{name} is {actual}, not {expected}")
    return tensors


def load_into(present: Tree, saved: Any, what: str, ignored: Collection[str] = ()) -> None:
    """Copy the tensors of a checkpoint into the existing ones, after the checks of `fit_all`. `ignored`: names, as in
    "buffers/gamma", of tensors that older checkpoints contain.
    """
    like = dict(_flat(present))
    tensors = dict(_flat(saved)) if isinstance(saved, dict) else {}
    tensors = {name: tensor for name, tensor in tensors.items() if name not in ignored}
    for name, tensor in fit_all(tensors, like, what).items():
        like[name].copy_(tensor)
