"""A checkpoint file: tensors and what else must be known, written whole or not at all, believed only if unharmed.

The layout is that of safetensors: eight bytes with the length of the header, the header (JSON), the tensors. The
header's `__metadata__` holds, as text: `format`, `about` (JSON: everything that is no tensor) and `sha256` of the whole
file with these 64 digits as zeros. So a file that was cut, or in which one bit changed, is known before it is used;
lengths are held against the size of the file before memory is set aside; and there is nothing in it that could run.
"""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import safetensors
import safetensors.numpy
import torch
from torch import Tensor

from kcl.core.files import write_whole
from kcl.errors import KclError

FORMAT = "kcl checkpoint 1"
LONGEST_HEADER = 1 << 26
LARGEST = 1 << 36
BLOCK = 1 << 20
_NO_DIGEST = b"0" * 64

Tree = dict[str, Any]
"""Tensors by name, in dictionaries within dictionaries."""


class Saved(NamedTuple):
    """What a checkpoint holds."""

    tensors: Tree
    about: dict[str, Any]


def write(path: Path, saved: Saved) -> None:
    """Write a checkpoint: after this it is on the disk, whole, or there is no file of that name and a KclError."""
    about = json.dumps(saved.about, allow_nan=False)
    metadata = {"format": FORMAT, "sha256": _NO_DIGEST.decode(), "about": about}
    arrays = {name: tensor.detach().cpu().contiguous().numpy() for name, tensor in _flat(saved.tensors)}
    content = bytearray(safetensors.numpy.save(arrays, metadata))
    digest = hashlib.sha256(content).hexdigest().encode()
    place = _digest_place(content[: 8 + struct.unpack("<Q", content[:8])[0]])
    content[place : place + 64] = digest
    write_whole(path, content)


def read(path: Path) -> Saved:
    """What a checkpoint holds; KclError where it is not whole, not unharmed or not of this format."""
    try:
        about = _verify(path)
        with safetensors.safe_open(path, framework="np") as file:
            tensors = {name: torch.from_numpy(np.array(file.get_tensor(name))) for name in file.keys()}  # noqa: SIM118
        return Saved(_nested(tensors), about)
    except OSError as error:
        raise KclError(f"{path} cannot be read: {error.strerror or error}") from None
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, safetensors.SafetensorError) as error:
        told = error if type(error) is ValueError else "its header is not as it should be"
        raise KclError(f"{path} is not a whole checkpoint: {told}") from None


def _verify(path: Path) -> dict[str, Any]:
    """Hold a file against its own header and digest, a block at a time; its `about`."""
    size = path.stat().st_size
    with path.open("rb") as file:
        start = file.read(8)
        length = struct.unpack("<Q", start)[0] if len(start) == 8 else 0
        if not 0 < length <= min(LONGEST_HEADER, size - 8) or size > LARGEST:
            raise ValueError("it has no header, or it is too large")
        header = file.read(length)
        metadata = json.loads(header.decode())["__metadata__"]
        if metadata["format"] != FORMAT:
            raise ValueError(f"its format is {str(metadata['format'])[:40]!r}, this version of kcl reads {FORMAT!r}")
        plain = bytearray(start + header)
        place = _digest_place(plain)
        found, plain[place : place + 64] = bytes(plain[place : place + 64]), _NO_DIGEST
        digest = hashlib.sha256(plain)
        while block := file.read(BLOCK):
            digest.update(block)
    if digest.hexdigest().encode() != found or metadata["sha256"].encode() != found:
        raise ValueError("its content is not what its sha256 says: it was cut or changed")
    about = json.loads(metadata["about"])
    if not isinstance(about, dict):
        raise ValueError("it says nothing about itself")
    return about


def _digest_place(header: bytes | bytearray) -> int:
    """Where the 64 digits begin: the one place where `"sha256":"` stands unescaped."""
    place = header.find(b'"sha256":"')
    if place < 0:
        raise ValueError("it has no sha256")
    return place + len(b'"sha256":"')


def _flat(tree: Tree, prefix: str = "") -> Iterable[tuple[str, Tensor]]:
    for name, value in tree.items():
        if isinstance(value, Mapping):
            yield from _flat(dict(value), f"{prefix}{name}/")
        else:
            yield prefix + name, value


def _nested(tensors: Mapping[str, Tensor]) -> Tree:
    tree: Tree = {}
    for path, tensor in tensors.items():
        *folders, name = path.split("/")
        inner = tree
        for folder in folders:
            inner = inner.setdefault(folder, {})
        inner[name] = tensor
    return tree


def digest(tree: Tree) -> str:
    """The same for the same tensors under the same names, and for no others."""
    found = hashlib.sha256()
    for name, tensor in sorted(_flat(tree), key=lambda item: item[0]):
        array = tensor.detach().cpu().contiguous().numpy()
        found.update(f"{name} {array.dtype.str} {array.shape}\n".encode())
        found.update(array.data if array.size else b"")
    return found.hexdigest()


def branch(tree: Any, name: str) -> Tree:
    """A part of a checkpoint that holds others; empty where it is missing."""
    found = tree.get(name, {}) if isinstance(tree, dict) else None
    if not isinstance(found, dict):
        raise KclError(f"the checkpoint does not fit the run: {name} is not what it should be")
    return found


def fit(given: Any, like: Tensor, what: str) -> Tensor:
    """A tensor of a checkpoint, seen to be of the shape and type that the run needs there."""
    if not isinstance(given, Tensor) or given.shape != like.shape or given.dtype != like.dtype:
        found = f"{given.dtype} {tuple(given.shape)}" if isinstance(given, Tensor) else "missing"
        raise KclError(f"the checkpoint does not fit the run: {what} is {found}, not {like.dtype} {tuple(like.shape)}")
    return given


def fit_all(given: Any, like: Mapping[str, Tensor], what: str) -> dict[str, Tensor]:
    """Tensors by name, each seen to be as the run needs it, none missing and none too many."""
    given = given if isinstance(given, dict) else {}
    if given.keys() - like.keys():
        raise KclError(f"the checkpoint does not fit the run: {what} has {sorted(given.keys() - like.keys())[:3]}")
    return {name: fit(given.get(name), tensor, f"{what}/{name}") for name, tensor in like.items()}
