"""Pickles read without unpickling: the same data as Python's own machine gives, and nothing ever run."""

from __future__ import annotations

import contextlib
import os
import pickle
import struct
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kcl.data import pickles
from kcl.errors import KclError

IMAGES = np.random.default_rng(0).integers(0, 256, (40, 4, 4, 3), dtype=np.uint8)


def _content() -> dict[str, Any]:
    """What the published files hold, and a little more: every kind of thing that is read."""
    return {
        "image_data": IMAGES,
        "again": IMAGES,
        "class_dict": {"n01": list(range(300)), "n02": [np.int64(3), 2**40, -7, -(2**33)]},
        "columns": np.asfortranarray(np.arange(12.0).reshape(3, 4)),
        "short": np.arange(3, dtype=np.uint8),
        "nothing": [None, True, False, (), (1,), (1, 2), (1, 2, 3), (1, 2, 3, 4), "é" * 300],
    }


@pytest.fixture
def write(tmp_path: Path) -> Any:
    def put(content: bytes) -> Path:
        path = tmp_path / "a.pkl"
        path.write_bytes(content)
        return path

    return put


def _same(one: Any, two: Any) -> bool:
    if isinstance(one, dict):
        return one.keys() == two.keys() and all(_same(one[key], two[key]) for key in one)
    if isinstance(one, np.ndarray):
        return one.dtype == two.dtype and np.array_equal(one, two)
    return bool(one == two)


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
class TestWholeFiles:
    def test_give_what_python_gives(self, write: Any, protocol: int) -> None:
        path = write(pickle.dumps(_content(), protocol))
        found = pickles.read(path)
        assert _same(found, pickle.loads(path.read_bytes()))
        assert found["again"] is found["image_data"]

    def test_arrays_may_be_changed_and_the_file_is_not(self, write: Any, protocol: int) -> None:
        path = write(pickle.dumps(_content(), protocol))
        before = path.read_bytes()
        found = pickles.read(path)["image_data"]
        found += 1
        assert path.read_bytes() == before

    def test_cut_anywhere_are_refused(self, write: Any, protocol: int) -> None:
        whole = pickle.dumps(_content(), protocol)
        for length in [*range(60), *range(60, len(whole), 97), len(whole) - 1]:
            with pytest.raises(KclError, match=r"a\.pkl is not"):
                pickles.read(write(whole[:length]))

    def test_changed_anywhere_give_data_or_a_refusal(self, write: Any, protocol: int) -> None:
        whole = pickle.dumps(_content(), protocol)
        random = np.random.default_rng(protocol)
        for _ in range(400):
            changed = bytearray(whole)
            for place in random.integers(0, len(whole), 3):
                changed[place] = random.integers(0, 256)
            with contextlib.suppress(KclError):
                pickles.read(write(bytes(changed)))


class _Runs:
    """Unpickled by Python, this would call a function."""

    def __init__(self, function: Any, *arguments: Any) -> None:
        self.call = function, arguments

    def __reduce__(self) -> Any:
        return self.call


@pytest.mark.parametrize("protocol", [0, 1, 2, 3, 4, 5])
@pytest.mark.parametrize("function", [os.system, eval, exec, open, getattr, __import__, np.load, np.memmap])
def test_nothing_is_run(write: Any, tmp_path: Path, function: Any, protocol: int) -> None:
    harm = tmp_path / "harm"
    content = pickle.dumps({"image_data": _Runs(function, f"touch {harm}")}, protocol)
    with pytest.raises(KclError, match=r"a\.pkl is not read: (it asks for|the instruction|it does not begin)"):
        pickles.read(write(content))
    assert not harm.exists()


HEAD = b"\x80\x04"


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "cannot|empty"),
        (HEAD, "the end is missing"),
        (HEAD + b".", "not a whole pickle"),
        (b"hello, I am no pickle", "does not begin"),
        (HEAD + b"\x8e" + struct.pack("<Q", 2**60) + b"abc.", "1152921504606846976 bytes .* 4 "),
        (HEAD + b"B" + struct.pack("<I", 2**32 - 1) + b"abc.", "4294967295 bytes"),
        (HEAD + b"T" + struct.pack("<i", -5) + b"abc.", "truncated"),
        (HEAD + b"}r" + struct.pack("<I", 2**32 - 1) + b"j" + struct.pack("<I", 7) + b".", "not a whole pickle"),
        (HEAD + b"\x8a\xff" + b"\x01" * 255 + b".", "more than 64 bits"),
        (HEAD + b"c" + b"x" * 1000 + b"\ny\n.", "more than 255 characters"),
        (HEAD + b"]]\x93.", "without naming it"),
        (HEAD + b"cnumpy\nndarray\nK\x01R.", "cannot be called"),
        (HEAD + b"K\x01)R.", "cannot be called"),
        (HEAD + b"}}b.", "not an array"),
        (HEAD + b"cnumpy\ndtype\n\x8c\x01O\x85R.", "an array of type 'O'"),
        (HEAD + b"cnumpy\ndtype\n\x8c\x02u1\x85R(K\x03\x8c\x01>NNNtb.", "little-endian"),
        (HEAD + b"(}" + b")" + b"\x85" * 100_000 + b"Nu.", "not a whole pickle|no dict"),
        (HEAD + b"})" + b"\x85" * 100_000 + b"Ns.", "a tuple for a key"),
        (b"\x80\x09N.", "protocol 9"),
        (b"\x80\x02X\x02\x00\x00\x00\xff\xff.", "not a whole pickle"),
    ],
)  # fmt: skip
def test_what_is_broken_or_meant_to_harm_is_refused(write: Any, content: bytes, reason: str) -> None:
    with pytest.raises(KclError, match=reason):
        pickles.read(write(content))


@pytest.mark.parametrize("shape", [(2**60,), (2**31, 2**31, 4), (3,), (0,), (-1, 4), (1,) * 9])
def test_a_claim_the_file_does_not_hold_is_refused_before_memory_is_set_aside(write: Any, shape: Any) -> None:
    lengths = b"".join(b"\x8a\x08" + struct.pack("<q", length) for length in shape)
    kind = b"cnumpy\ndtype\n\x8c\x02u1\x85R(K\x03\x8c\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
    state = b"(K\x01(" + lengths + b"t" + kind + b"\x89C\x04abcdtb."
    with pytest.raises(KclError, match=r"it claims an array|unknown form"):
        pickles.read(write(HEAD + b"cnumpy\nndarray\n)R" + state))


@given(st.binary(max_size=200))
def test_any_bytes_at_all_give_data_or_a_refusal(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    path = tmp_path_factory.mktemp("any") / "a.pkl"
    path.write_bytes(HEAD + content)
    with contextlib.suppress(KclError):
        pickles.read(path)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(KclError, match=r"nowhere cannot be read: No such file"):
        pickles.read(tmp_path / "nowhere")


NESTED = b")" + b"q\x00h\x00\x86" * 60  # a tuple of two of itself, 60 times over: 2**60 items to show


@pytest.mark.parametrize(
    "content",
    [
        b"cnumpy\ndtype\n" + NESTED + b"\x85R.",
        b"cnumpy.core.multiarray\nscalar\ncnumpy\ndtype\n\x8c\x02u1\x85R" + NESTED + b"\x86R.",
        b"cnumpy\nndarray\n)R(K\x01" + NESTED + b"cnumpy\ndtype\n\x8c\x02u1\x85R\x89C\x00tb.",
    ],
)
def test_what_would_be_long_to_show_is_not_shown(write: Any, content: bytes) -> None:
    with pytest.raises(KclError) as caught:
        pickles.read(write(HEAD + content))
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize("raw", ["text", "array"])
def test_one_content_is_not_copied_many_times(write: Any, raw: str) -> None:
    """1 MB and 25 bytes for every further copy of it."""
    long = b"X" + struct.pack("<I", 2**20) + b"x" * 2**20 + b"q\x00"
    encode = b"c_codecs\nencode\nh\x00\x8c\x06latin1\x86R"
    dtype = b"cnumpy\ndtype\n\x8c\x02u1\x85R"
    array = b"cnumpy.core.numeric\n_frombuffer\n(h\x00" + dtype + b"J" + struct.pack("<i", 2**20) + b"\x85tR"
    repeated = {"text": encode, "array": array}[raw] * 50_000
    tracemalloc.start()
    with pytest.raises(KclError, match="copies the same content many times"):
        pickles.read(write(HEAD + long + repeated + b"."))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 32 * 2**20
