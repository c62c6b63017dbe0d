"""Features on disk, one row for each input, found by the digest of its content.

    keys      U8  (n, 16)    features  F32 (n, d)

One safetensors file for each portion that was added, in a folder of its own for each network. A file is named by the
SHA-256 of its rows, and appears whole or not at all. A new file takes the rows of smaller ones with it, so that files
stay few however small the portions. Processes need no lock: at worst two compute the same row.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence, Set
from pathlib import Path

import numpy as np
import safetensors
import safetensors.numpy

from kcl.core.opening import check_readable
from kcl.core.shapes import Float
from kcl.data import file_cache

KEY_BYTES = 16
SMALL, LARGEST_MERGED = 2**16, 2**28
"""Bytes of files that are written again with any further rows, and at most with as many or more."""
Array = np.ndarray
Rows = tuple[Sequence[bytes], Float[Array, "n d"]]
NOTHING: Rows = ([], np.empty((0, 0), np.float32))


class FeatureCache:
    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def find(self, wanted: Set[bytes]) -> dict[bytes, Float[Array, " d"]]:
        """The rows that are known of the wanted keys."""
        known, seen = dict[bytes, Array](), set[Path]()
        while files := [path for path in self._files() if path not in seen]:  # again, as others may be merged meanwhile
            for path in files:
                keys, features = self._read(path, wanted)
                known |= {key: features[row] for row, key in enumerate(keys) if key in wanted}
            seen.update(files)
        return known

    def add(self, rows: Mapping[bytes, Float[Array, " d"]]) -> None:
        """Write rows, together with those of smaller files."""
        rows, merged = dict(rows), list[Path]()
        size = sum(row.nbytes for row in rows.values())
        for path in self._files():
            if _size(path) > min(max(2 * size, SMALL), LARGEST_MERGED):
                break
            keys, features = self._read(path)
            rows |= zip(keys, features, strict=True)
            merged.append(path)
            size += features.nbytes
        joined, features = b"".join(rows), np.stack(list(rows.values()))
        final = self.folder / f"{_digest(joined, features)}.safetensors"
        arrays = {"keys": np.frombuffer(joined, np.uint8).reshape(-1, KEY_BYTES), "features": features}
        with file_cache.new_file(final) as private:
            safetensors.numpy.save_file(arrays, private)
        for path in merged:
            if path != final:
                path.unlink(missing_ok=True)

    def _files(self) -> list[Path]:
        """The smallest first."""
        return sorted(self.folder.glob("*.safetensors"), key=_size)

    def _read(self, path: Path, wanted: Set[bytes] | None = None) -> Rows:
        """Keys and rows of a file; none if there are no `wanted` ones, or another process has merged it meanwhile. A
        damaged file is moved aside.
        """
        try:
            check_readable(path)
            with safetensors.safe_open(path, framework="np") as file:
                keys = file.get_tensor("keys").tobytes()
                split = [keys[at : at + KEY_BYTES] for at in range(0, len(keys), KEY_BYTES)]
                if wanted is not None and wanted.isdisjoint(split):
                    return NOTHING
                features = file.get_tensor("features")
            if _digest(keys, features) == path.stem:
                return split, features
        except FileNotFoundError:
            return NOTHING
        except safetensors.SafetensorError:
            pass
        file_cache.move_aside(path)
        return NOTHING


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:  # merged by another process
        return 0


def _digest(keys: bytes, features: Array) -> str:
    digest = hashlib.sha256(keys)
    digest.update(np.ascontiguousarray(features).data)
    return digest.hexdigest()
