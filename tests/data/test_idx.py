from __future__ import annotations

import contextlib
import gzip
import hashlib
import struct
import tracemalloc
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kcl.data import idx
from kcl.errors import KclError

ARRAY = torch.arange(24, dtype=torch.uint8).reshape(2, 3, 4)
# Spelled out, not made by the code under test.
CONTENT = bytes.fromhex("00000803 00000002 00000003 00000004") + bytes(range(24))


def put(tmp_path: Path, content: bytes, name: str = "array") -> Path:
    path = tmp_path / name
    path.write_bytes(content)
    return path


def test_plain_file(tmp_path: Path) -> None:
    read = idx.read(put(tmp_path, CONTENT))
    assert read.dtype == torch.uint8
    assert torch.equal(read, ARRAY)


def test_gzip_file(tmp_path: Path) -> None:
    assert torch.equal(idx.read(put(tmp_path, gzip.compress(CONTENT), "array.gz")), ARRAY)


def test_written_file_is_the_published_spelling(tmp_path: Path) -> None:
    idx.write(tmp_path / "array", ARRAY)
    assert (tmp_path / "array").read_bytes() == CONTENT


@pytest.mark.parametrize("array", [ARRAY, ARRAY.transpose(0, 2)])
def test_digest_is_the_md5_of_the_plain_file(tmp_path: Path, array: torch.Tensor) -> None:
    idx.write(tmp_path / "array", array)
    assert idx.digest(array) == hashlib.md5((tmp_path / "array").read_bytes()).hexdigest()


@pytest.mark.parametrize("kept", [0, 3, 10, 16, len(CONTENT) - 1])
@pytest.mark.parametrize("compressed", [False, True])
def test_truncated(tmp_path: Path, kept: int, compressed: bool) -> None:
    part = CONTENT[:kept]
    path = put(tmp_path, gzip.compress(part), "array.gz") if compressed else put(tmp_path, part)
    with pytest.raises(KclError, match=r"array(\.gz)? is not a whole IDX file: (it is truncated|its header claims 24)"):
        idx.read(path)


@pytest.mark.parametrize("cut", [1, 8, 20])
def test_truncated_gzip_stream(tmp_path: Path, cut: int) -> None:
    with pytest.raises(KclError, match=r"array\.gz is not a whole IDX file: its gzip stream is truncated"):
        idx.read(put(tmp_path, gzip.compress(CONTENT)[:-cut], "array.gz"))


def test_flipped_bit_in_gzip_stream(tmp_path: Path) -> None:
    packed = bytearray(gzip.compress(CONTENT))
    packed[-8] ^= 1  # The checksum that gzip appends.
    with pytest.raises(KclError, match=r"array\.gz is not a whole gzip file: CRC"):
        idx.read(put(tmp_path, bytes(packed), "array.gz"))


def test_named_gz_but_plain(tmp_path: Path) -> None:
    with pytest.raises(KclError, match=r"array\.gz is not a whole gzip file"):
        idx.read(put(tmp_path, CONTENT, "array.gz"))


@pytest.mark.parametrize(
    "magic",
    ["01000803", "00010803", "00000d03", "00000800", "000008ff", "1f8b0808"],
    ids=["first byte", "second byte", "floats", "no dimensions", "255 dimensions", "gzip"],
)
def test_wrong_magic(tmp_path: Path, magic: str) -> None:
    with pytest.raises(KclError, match=f"begins with {magic}"):
        idx.read(put(tmp_path, bytes.fromhex(magic) + CONTENT[4:]))


def test_trailing_bytes(tmp_path: Path) -> None:
    with pytest.raises(KclError, match="bytes follow the 24 elements"):
        idx.read(put(tmp_path, CONTENT + b"!"))
    with pytest.raises(KclError, match="bytes follow the 24 elements"):
        idx.read(put(tmp_path, gzip.compress(CONTENT) + gzip.compress(b"!"), "array.gz"))


def test_empty_shape(tmp_path: Path) -> None:
    with pytest.raises(KclError, match="empty shape"):
        idx.read(put(tmp_path, struct.pack(">BBBB3I", 0, 0, 8, 3, 0, 2**32 - 1, 2**32 - 1)))


@pytest.mark.parametrize("name", ["array", "array.gz"])
@pytest.mark.parametrize("limit", [2**30, 2**62], ids=["by the limit", "by the size of the file"])
def test_oversized_header_is_refused_before_memory_is_taken(tmp_path: Path, name: str, limit: int) -> None:
    content = struct.pack(">BBBB2I", 0, 0, 8, 2, 2**30, 2**30) + bytes(64)
    path = put(tmp_path, gzip.compress(content) if name.endswith("gz") else content, name)
    tracemalloc.start()
    with pytest.raises(KclError, match=f"claims {2**60} elements"):
        idx.read(path, limit)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 1_000_000


def test_bomb_stops_at_what_its_header_claims(tmp_path: Path) -> None:
    path = put(tmp_path, gzip.compress(CONTENT[:4] + struct.pack(">3I", 1, 1, 100) + bytes(20_000_000)), "bomb.gz")
    tracemalloc.start()
    with pytest.raises(KclError, match="bytes follow the 100 elements"):
        idx.read(path)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 2_000_000


def test_missing_file_and_folder_are_named(tmp_path: Path) -> None:
    with pytest.raises(KclError, match="nowhere cannot be read: No such file"):
        idx.read(tmp_path / "nowhere")
    with pytest.raises(KclError, match="cannot be read"):
        idx.read(tmp_path)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=50, deadline=None)
@given(shape=st.lists(st.integers(1, 5), min_size=1, max_size=8), compressed=st.booleans())
def test_what_is_written_is_read(tmp_path: Path, shape: list[int], compressed: bool) -> None:
    array = torch.randint(256, shape, dtype=torch.uint8, generator=torch.Generator().manual_seed(sum(shape)))
    path = tmp_path / "array"
    idx.write(path, array)
    if compressed:
        path = put(tmp_path, gzip.compress(path.read_bytes()), "array.gz")
    assert torch.equal(idx.read(path), array)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=100, deadline=None)
@given(tail=st.binary(max_size=64), magic=st.booleans(), packing=st.sampled_from(["plain", "gzip", "torn"]))
def test_arbitrary_bytes_give_an_array_or_a_sentence(tmp_path: Path, tail: bytes, magic: bool, packing: str) -> None:
    content = b"\0\0\x08" * magic + tail
    packed = {"plain": content, "gzip": gzip.compress(content), "torn": b"\x1f\x8b\x08" + tail}[packing]
    path = put(tmp_path, packed, "array" if packing == "plain" else "array.gz")
    with contextlib.suppress(KclError):
        assert idx.read(path).numel() <= len(content)
