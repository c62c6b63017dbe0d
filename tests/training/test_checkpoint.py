"""The checkpoint file: what goes in comes out, and nothing else is ever believed."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from kcl.errors import KclError
from kcl.training import checkpoint
from kcl.training.checkpoint import Saved

TENSORS = {
    "a": {"b": torch.arange(6.0).view(2, 3), "c": {"0": torch.tensor(7), "1": torch.tensor([True, False])}},
    "bytes": torch.arange(256, dtype=torch.uint8),
    "none": torch.zeros(0, 4),
    "double": torch.tensor([1e-300, -0.0, float("inf"), float("nan")], dtype=torch.float64),
    "strided": torch.arange(6).view(2, 3).T,
    "short": torch.tensor([1, -1], dtype=torch.int32),
}
ABOUT: dict[str, Any] = {"numbers": [0.1, 1e300, 3], "text": 'λ "sha256":"', "nested": {"none": None, "yes": True}}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "deep" / "00000001.safetensors"
    checkpoint.write(path, Saved(TENSORS, ABOUT))
    return path


def _sign(content: bytes) -> bytes:
    """What one would do who means harm: make the digest right."""
    import hashlib

    changed = bytearray(content)
    place = changed.find(b'"sha256":"') + 10
    changed[place : place + 64] = b"0" * 64
    changed[place : place + 64] = hashlib.sha256(changed).hexdigest().encode()
    return bytes(changed)


def _with_header(content: bytes, change: Any) -> bytes:
    length = struct.unpack("<Q", content[:8])[0]
    header = json.loads(content[8 : 8 + length])
    change(header)
    text = json.dumps(header, separators=(",", ":")).encode()
    return _sign(struct.pack("<Q", len(text)) + text + content[8 + length :])


def test_what_goes_in_comes_out(path: Path) -> None:
    saved = checkpoint.read(path)
    assert saved.about == ABOUT
    assert checkpoint.digest(saved.tensors) == checkpoint.digest(TENSORS)
    assert saved.tensors["a"]["c"]["0"].shape == ()
    assert saved.tensors["strided"].dtype == torch.int64
    saved.tensors["bytes"] += 1  # it is nobody else's
    assert [each.name for each in path.parent.iterdir()] == [path.name]


def test_others_can_open_it(path: Path) -> None:
    import safetensors.torch

    assert torch.equal(safetensors.torch.load_file(path)["a/b"], TENSORS["a"]["b"])  # type: ignore[index]


def test_a_digest_tells_names_types_and_values_apart() -> None:
    one = torch.zeros(4)
    trees = [{"a": one}, {"b": one}, {"a": one.double()}, {"a": one.view(2, 2)}, {"a": one + 1}, {"a": {"a": one}}]
    assert len({checkpoint.digest(tree) for tree in trees}) == len(trees)


def test_cut_anywhere_it_is_refused(path: Path) -> None:
    whole = path.read_bytes()
    for length in [*range(0, len(whole), 37), len(whole) - 1]:
        path.write_bytes(whole[:length])
        with pytest.raises(KclError, match="is not a complete checkpoint"):
            checkpoint.read(path)
    path.write_bytes(whole + b"\0")
    with pytest.raises(KclError, match="is not a complete checkpoint"):
        checkpoint.read(path)


def test_with_any_bit_changed_it_is_refused(path: Path) -> None:
    whole = path.read_bytes()
    for place in np.random.default_rng(0).integers(0, len(whole), 400):
        for bit in (0, 7):
            changed = bytearray(whole)
            changed[place] ^= 1 << bit
            path.write_bytes(changed)
            with pytest.raises(KclError):
                checkpoint.read(path)


LIES: dict[str, Any] = {
    "a shape of 2^60": lambda header: header["bytes"].update(shape=[2**60]),
    "a shape whose size overflows": lambda header: header["bytes"].update(shape=[2**32, 2**32, 256]),
    "an end beyond the file": lambda header: header["bytes"].update(data_offsets=[0, 2**60]),
    "a negative place": lambda header: header["bytes"].update(data_offsets=[-1, 255]),
    "places that overlap": lambda header: header["bytes"].update(data_offsets=header["double"]["data_offsets"]),
    "an unknown type": lambda header: header["bytes"].update(dtype="PICKLE"),
    "another version": lambda header: header["__metadata__"].update(format="kcl checkpoint 2"),
    "no format": lambda header: header["__metadata__"].pop("format"),
    "no metadata": lambda header: header.pop("__metadata__"),
    "about a list": lambda header: header["__metadata__"].update(about="[]"),
    "about nothing": lambda header: header["__metadata__"].update(about=""),
    "about too deep": lambda header: header["__metadata__"].update(about="[" * 10**6),
    "a tensor beside what it is in": lambda header: header.update({"bytes/x": header.pop("none")}),
}


@pytest.mark.parametrize("lie", LIES)
def test_lies_with_a_right_digest_are_refused(path: Path, lie: str) -> None:
    path.write_bytes(_with_header(path.read_bytes(), LIES[lie]))
    with pytest.raises(KclError, match="is not a complete checkpoint") as caught:
        checkpoint.read(path)
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize("length", [0, 2**26 + 1, 2**60, 2**64 - 1])
def test_a_header_longer_than_its_file_asks_for_no_memory(path: Path, length: int) -> None:
    path.write_bytes(struct.pack("<Q", length) + path.read_bytes()[8:])
    with pytest.raises(KclError, match="no header"):
        checkpoint.read(path)


def test_a_file_of_a_terabyte_is_refused_at_once(path: Path) -> None:
    with path.open("r+b") as file:
        try:
            file.truncate(2**40)  # takes no room
        except OSError:
            pytest.skip("the file system knows no holes")
    with pytest.raises(KclError, match="too large"):
        checkpoint.read(path)


def test_what_cannot_be_opened_is_told(tmp_path: Path) -> None:
    with pytest.raises(KclError, match="cannot be read"):
        checkpoint.read(tmp_path / "none.safetensors")
    with pytest.raises(KclError, match="cannot be read"):
        checkpoint.read(tmp_path)
    with pytest.raises(KclError, match="was not written"):
        checkpoint.write(tmp_path, Saved({}, {}))
