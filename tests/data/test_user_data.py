"""A user's tables and arrays: what is refused, always in one sentence, and never read for ever."""

from __future__ import annotations

import io
import os
import struct
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kcl.data import user_data
from kcl.data.user_data import Samples
from kcl.errors import KclError

LABELS = np.array(["a", "b"] * 10)
ROWS = np.random.default_rng(0).normal(size=(20, 4))
SHAPE = "{'descr': '<f8', 'fortran_order': False, 'shape': %s}"


def _read(path: Path) -> Samples:
    return user_data.read(path, labelled=True)


def _refusal(path: Path) -> str:
    with pytest.raises(KclError) as caught:
        _read(path)
    message = str(caught.value)
    assert "\n" not in message
    assert len(message) < 500
    assert path.name in message
    return message


def _member(array: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, array)
    return buffer.getvalue()


def _with_header(text: str, content: bytes = b"") -> bytes:
    """A member of an .npz file with any header."""
    header = text.encode() + b" " * (-(len(text) + 11) % 64) + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header + content


def _archive(inputs: bytes, labels: bytes = _member(LABELS), suffix: str = ".npy", compression: int = 0) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", compression) as archive:
        archive.writestr(f"inputs{suffix}", inputs)
        archive.writestr(f"labels{suffix}", labels)
    return buffer.getvalue()


def _patched(at: int, value: int) -> bytes:
    """A sound archive in which a field of every entry is changed, given by its place in the local header."""
    content = bytearray(_archive(_member(ROWS)))
    for signature, place in ((b"PK\x03\x04", at), (b"PK\x01\x02", at + 2)):
        start = -1
        while (start := content.find(signature, start + 1)) >= 0:
            content[start + place : start + place + 2] = struct.pack("<H", value)
    return bytes(content)


def _damaged(compression: int) -> bytes:
    content = bytearray(_archive(_member(ROWS), compression=compression))
    content[80:160] = b"\xff" * 80
    return bytes(content)


def test_numbers_of_every_kind_become_single_precision_and_bytes_stay(tmp_path: Path) -> None:
    for dtype in (np.uint8, np.int64, bool, np.float16, np.float64, np.longdouble, ">f8"):
        array = (10 * ROWS).astype(dtype) if dtype is not np.uint8 else np.abs(10 * ROWS).astype(dtype)
        np.savez(tmp_path / "a.npz", x=array, y=LABELS)
        samples = _read(tmp_path / "a.npz")
        assert samples.inputs.dtype == (np.uint8 if dtype is np.uint8 else np.float32)
        assert np.array_equal(samples.inputs, array.astype(samples.inputs.dtype))
        assert samples.labels is not None
        assert samples.labels.tolist() == LABELS.tolist()


@pytest.mark.parametrize(
    "content",
    [
        b"nonsense",
        _member(ROWS),
        _damaged(zipfile.ZIP_STORED),
        _damaged(zipfile.ZIP_DEFLATED),
        _damaged(zipfile.ZIP_BZIP2),
        _damaged(zipfile.ZIP_LZMA),
        _patched(6, 1),
        _patched(6, 0x20),
        _patched(6, 0x40),
        _patched(8, 77),
        _archive(b"hello"),
        _archive(b"hello", suffix=""),
        _archive(_with_header("{{{{ '")),
        _archive(_with_header("(" * 5000)),
        _archive(_with_header("[1]")),
        _archive(_with_header("{'descr': [('a',)], 'fortran_order': False, 'shape': (20, 4)}")),
        _archive(_with_header(SHAPE % "(True, 4)", bytes(32))),
        _archive(_with_header(SHAPE % "(-1, 4)", bytes(32))),
        _archive(_with_header(SHAPE % "(4398046511104, 4)", bytes(32))),
        _archive(_with_header(SHAPE % "(99999999999999999999999, 4)", bytes(32))),
        _archive(_with_header(SHAPE % "(99999999999, 0)")),
        _archive(_with_header("{'descr': '|V0', 'fortran_order': False, 'shape': (20, 4)}")),
        _archive(_member(np.zeros((20, 0)))),
        _archive(_member(np.zeros(20))),
        _archive(_member(ROWS.astype(complex))),
        _archive(_member(ROWS), _member(LABELS[:5])),
        _archive(_member(ROWS), _member(np.zeros((20, 2)))),
        _archive(_member(ROWS), _with_header("{'descr': '<U0', 'fortran_order': False, 'shape': (20000000000,)}")),
        _archive(_member(ROWS), _with_header("{'descr': '<U1', 'fortran_order': False, 'shape': (20,)}", b"\xff" * 80)),
        zlib.compress(_archive(_member(ROWS))),
    ],
)
def test_a_broken_archive_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "a.npz"
    path.write_bytes(content)
    _refusal(path)


@pytest.mark.parametrize(
    ("inputs", "word"),
    [
        (np.zeros((20, 32, 32, 3), np.uint8), "channels first"),
        (np.zeros((20, 28, 28, 1), np.float32), "channels first"),
        (np.zeros((20, 32, 16, 4), np.uint8), "channels first"),
        (np.zeros((20, 3, 2000, 1), np.uint8), "2000"),
        (np.where(np.arange(80).reshape(20, 4) == 30, np.nan, ROWS), "[7, 2]"),
        (np.where(np.arange(1280).reshape(20, 1, 8, 8) == 75, np.inf, 0.0), "[1, 0, 1, 3]"),
        (np.full((20, 4), 1e300), "[0, 0]"),
    ],
)
def test_arrays_that_cannot_be_learned_name_the_place(tmp_path: Path, inputs: np.ndarray, word: str) -> None:
    np.savez(tmp_path / "a.npz", inputs=inputs, labels=LABELS)
    assert word in _refusal(tmp_path / "a.npz")


@pytest.mark.parametrize("shape", [(64, 1, 1), (3, 32, 32), (1, 2000, 1), (4, 9, 9), (28, 28), (2, 2, 2, 2)])
def test_arrays_with_channels_first_are_read(tmp_path: Path, shape: tuple[int, ...]) -> None:
    np.savez(tmp_path / "a.npz", inputs=np.zeros((20, *shape), np.uint8), labels=LABELS)
    assert _read(tmp_path / "a.npz").inputs.shape == (20, *shape)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a;b;label\n1,5;2;x\n3;4;y\n", ["semicolon"]),
        ("a;b\n1;x\n", ["semicolon"]),
        ("a,name,label\n1,5,x\n2,bob,y\n", ["'name'", "sample 2", "'bob'"]),
        ("a,b,label\n1,2,x\n3,nan,y\n", ["'b'", "sample 2"]),
        ("a,b,label\n1,2,x\n1e300,4,y\n", ["'a'", "sample 2"]),
        ("a,b,label\n1,2,x\n3,4,5,y\n", ["line 3"]),
        ("a,label\n" + "9" * 200_000 + ",x\n", []),
        ("a,a,label\n1,2,x\n", []),
    ],
)
def test_a_table_that_cannot_be_learned_names_the_place(tmp_path: Path, text: str, words: list[str]) -> None:
    (tmp_path / "a.csv").write_text(text, encoding="utf-8")
    message = _refusal(tmp_path / "a.csv")
    assert all(word in message for word in words)


def test_columns_that_the_model_does_not_know_are_named(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("b,more,a,label\n1,text,2,x\n", encoding="utf-8")
    said: list[str] = []
    samples = user_data.read(tmp_path / "a.csv", True, columns=("a", "b"), say=said.append)
    assert samples.inputs.tolist() == [[2.0, 1.0]]
    [line] = said
    assert "more" in line


@pytest.mark.parametrize(
    ("columns", "word"),
    [
        ({"a": [[1.0], [1.0, 2.0]], "label": ["x", "y"]}, "'a'"),
        ({"a": [1.0, 2.0], "label": [["x"], ["y", "z"]]}, "'label'"),
        ({"a": [1.0, 2.0], "label": [["x"], ["y"]]}, "'label'"),
        ({"a": [1.0, float("nan")], "label": ["x", "y"]}, "sample 2"),
    ],
)
def test_a_parquet_file_that_cannot_be_learned(tmp_path: Path, columns: dict[str, Any], word: str) -> None:
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    parquet.write_table(pyarrow.table(columns), tmp_path / "a.parquet")
    assert word in _refusal(tmp_path / "a.parquet")


def test_a_parquet_file_with_a_column_twice(tmp_path: Path) -> None:
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    table = pyarrow.Table.from_arrays([pyarrow.array([1.0]), pyarrow.array([2.0])], names=["a", "a"])
    parquet.write_table(table, tmp_path / "a.parquet")
    _refusal(tmp_path / "a.parquet")


@pytest.mark.parametrize("suffix", [".csv", ".npz", ".parquet", ".png"])
@pytest.mark.parametrize("make", [os.mkfifo, lambda path: path.symlink_to("/dev/zero")], ids=["pipe", "device"])
@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no named pipes")
def test_what_never_ends_is_not_read(tmp_path: Path, make: Callable[[Path], None], suffix: str) -> None:
    path = tmp_path / f"a{suffix}"
    make(path)
    _refusal(path)
    with pytest.raises(KclError):
        user_data.read(path, labelled=False)


def test_a_pipe_among_images_is_left_out(tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    for name in ("cat", "dog"):
        (tmp_path / name).mkdir()
        image.new("RGB", (2000, 1)).save(tmp_path / name / "0.png")
    os.mkfifo(tmp_path / "cat" / "1.png")
    assert user_data.read(tmp_path, labelled=True, side=8).inputs.shape == (2, 3, 8, 8)


def test_names_of_any_length_are_told_shortly(tmp_path: Path) -> None:
    path = tmp_path / "x.csv"
    path.write_text("a," + "b" * 5000 + "\n1,2\n", encoding="utf-8")
    with pytest.raises(KclError, match="has no column 'label'") as refused:
        user_data.read(path, labelled=True)
    assert len(str(refused.value)) < 700
