"""The IDX format of MNIST: unsigned bytes behind a small header, plain or gzipped.

A header is not trusted. It is checked against the size of the file and against the caller's limit before any memory
is allocated, so neither a forged header nor a decompression bomb can take more than is allowed.
"""

from __future__ import annotations

import gzip
import hashlib
import math
import os
import struct
import zlib
from pathlib import Path
from typing import BinaryIO

import torch
from torch import Tensor

from kcl.errors import KclError

UNSIGNED_BYTE = 0x08
MOST_DIMENSIONS = 8
# No deflate stream expands further than this, so a gzip file's size on disk bounds what it can hold.
DEFLATE_EXPANSION = 1032


def read(path: Path, limit: int = 2**30) -> Tensor:
    """The uint8 tensor a file holds; `limit` is the largest number of elements accepted."""
    try:
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            if path.suffix != ".gz":
                return _decode(file, size, limit)
            with gzip.GzipFile(fileobj=file) as stream:
                return _decode(stream, size * DEFLATE_EXPANSION, limit)  # type: ignore[arg-type]
    except _Malformed as error:
        raise KclError(f"{path} is not a whole IDX file: {error}") from None
    except EOFError:
        raise KclError(f"{path} is not a whole IDX file: its gzip stream is truncated") from None
    except (gzip.BadGzipFile, zlib.error) as error:
        raise KclError(f"{path} is not a whole gzip file: {error}") from None
    except OSError as error:
        raise KclError(f"{path} cannot be read: {error.strerror or error}") from None


def header(shape: tuple[int, ...]) -> bytes:
    """The header of an array of this shape."""
    return struct.pack(f">BBBB{len(shape)}I", 0, 0, UNSIGNED_BYTE, len(shape), *shape)


def digest(array: Tensor) -> str:
    """The md5 of the plain IDX file that holds `array`.

    `read` accepts only one encoding of an array, so this is also the md5 of the decompressed file it was read from.
    Publishers identify their files by md5; nothing here depends on it being secure.
    """
    md5 = hashlib.md5(header(tuple(array.shape)), usedforsecurity=False)
    md5.update(array.contiguous().numpy().data)
    return md5.hexdigest()


def write(path: Path, array: Tensor) -> None:
    """Write `array` as a plain IDX file."""
    with path.open("wb") as file:
        file.write(header(tuple(array.shape)))
        file.write(array.contiguous().numpy().data)


class _Malformed(Exception):
    """What is wrong with the bytes; `read` adds the file's name."""


def _decode(stream: BinaryIO, available: int, limit: int) -> Tensor:
    magic = _take(stream, 4)
    if bytes(magic[:3]) != bytes((0, 0, UNSIGNED_BYTE)) or not 1 <= magic[3] <= MOST_DIMENSIONS:
        raise _Malformed(f"it begins with {bytes(magic).hex()}, not with 000008 and a number of dimensions")
    shape = struct.unpack(f">{magic[3]}I", _take(stream, 4 * magic[3]))
    count = math.prod(shape)
    if count == 0:
        raise _Malformed(f"its header claims the empty shape {shape}")
    if count > limit:
        raise _Malformed(f"its header claims {count} elements where at most {limit} are expected")
    if count > available:
        raise _Malformed(f"its header claims {count} elements, more than a file this short can hold")
    content = _take(stream, count)
    if stream.read(1):
        raise _Malformed(f"bytes follow the {count} elements its header claims")
    return torch.frombuffer(content, dtype=torch.uint8).reshape(shape)


def _take(stream: BinaryIO, count: int) -> bytearray:
    """Exactly `count` bytes of the stream."""
    content = bytearray(count)
    view, filled = memoryview(content), 0
    while filled < count:
        step = stream.readinto(view[filled:])  # type: ignore[attr-defined]
        if not step:
            raise _Malformed(f"it is truncated: {count} bytes were expected and {filled} are left")
        filled += step
    return content
