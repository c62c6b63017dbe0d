"""A user's own samples from a file or a folder: images, .npz, CSV or Parquet; for learning with labels, else without.

folder       CLASS/… with images to learn from; images at any depth to be answered
image file   one to be answered
.npz         arrays `inputs` (or `x`, `X`) and `labels` (or `y`), never pickled objects
.csv         a header, one column of labels, numbers in all others
.parquet     the same
"""

from __future__ import annotations

import csv
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from kcl.data import folders, pictures
from kcl.errors import KclError

LARGEST = 2**34
"""Bytes of arrays that are read into memory at most."""
DEFAULT_LABEL = "label"
_INPUTS, _LABELS = ("inputs", "x", "X"), ("labels", "y")


class Samples(NamedTuple):
    """Samples in order; `names` tell them apart in what is answered, `columns` where they are rows of a table."""

    inputs: np.ndarray
    labels: np.ndarray | None
    names: Sequence[str]
    columns: tuple[str, ...] = ()


def read(
    path: Path, labelled: bool, label: str = DEFAULT_LABEL, side: int | None = None, columns: Sequence[str] = ()
) -> Samples:
    """Samples to learn from (`labelled`) or to be answered. `columns`: those of a table that are wanted, in order."""
    path = path.expanduser()
    try:
        samples = _read(path, labelled, label, side or folders.DEFAULT_SIDE, columns)
    except OSError as error:
        raise KclError(f"{path} cannot be read: {error.strerror or error}") from None
    if len(samples.inputs) == 0:
        raise KclError(f"{path} holds no samples")
    return samples


def _read(path: Path, labelled: bool, label: str, side: int, columns: Sequence[str]) -> Samples:
    if path.is_dir() or path.suffix.lower() in pictures.SUFFIXES:
        return _images(path, labelled, side)
    if not path.is_file():
        raise KclError(f"{path} is not there; expected a folder of images, or a .npz, .csv or .parquet file")
    readers = {".npz": _arrays, ".csv": _csv, ".parquet": _parquet}
    if path.suffix.lower() not in readers:
        raise KclError(f"{path}: expected a folder of images, or a file that ends in {', '.join(readers)}")
    return readers[path.suffix.lower()](path, labelled, label, columns)


def _images(path: Path, labelled: bool, side: int) -> Samples:
    if labelled:
        if not path.is_dir():
            raise KclError(
                f"{path} is one image; to learn, give a folder that holds a folder of images for every class"
            )
        classes = folders.list_classes(path)
        files = [file for own in classes.values() for file in own]
        labels = np.array([name for name, own in classes.items() for _ in own])
    else:
        found = sorted(path.rglob("*")) if path.is_dir() else [path]
        files = [file for file in found if file.suffix.lower() in pictures.SUFFIXES and file.is_file()]
        labels = None
    if not files:
        raise KclError(f"{path} holds no JPEG, PNG or WebP images")
    if len(files) * 3 * side**2 > LARGEST:
        raise KclError(f"the {len(files)} images of {path} take more than {LARGEST} bytes at {side} × {side}")
    names = [str(file.relative_to(path)) if path.is_dir() else file.name for file in files]
    return Samples(np.concatenate(list(pictures.decode_all(files, side))), labels, names)


def _arrays(path: Path, labelled: bool, label: str, columns: Sequence[str]) -> Samples:  # noqa: ARG001
    try:
        with zipfile.ZipFile(path) as archive:
            size = sum(entry.file_size for entry in archive.infolist())
        if size > LARGEST:
            raise KclError(f"{path} holds {size} bytes of arrays; at most {LARGEST} are read")
        with np.load(path, allow_pickle=False) as arrays:
            inputs = arrays[_first(_INPUTS, arrays.files, path)]
            labels = arrays[_first(_LABELS, arrays.files, path)] if labelled else None
    except (ValueError, zipfile.BadZipFile, EOFError) as error:
        raise KclError(f"{path} is no whole .npz file of plain arrays: {error}") from None
    if inputs.dtype.kind not in "fiub" or inputs.ndim < 2:
        raise KclError(f"{path}: inputs of shape {inputs.shape} and type {inputs.dtype}; expected rows of numbers")
    return Samples(inputs, labels, [str(row) for row in range(len(inputs))])


def _first(names: Sequence[str], there: Sequence[str], path: Path) -> str:
    for name in names:
        if name in there:
            return name
    raise KclError(f"{path} has no array named {' or '.join(names)}; it has {', '.join(there) or 'none'}")


def _csv(path: Path, labelled: bool, label: str, columns: Sequence[str]) -> Samples:
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            rows = csv.reader(file)
            header = next(rows, [])
            table: dict[str, Any] = {name: [] for name in header}
            if len(table) != len(header) or not header:
                raise KclError(f"{path}: expected a first line with the name of every column, each once")
            for row in rows:
                if not row:
                    continue
                if len(row) != len(header):
                    raise KclError(f"{path}, line {rows.line_num}: {len(row)} values for {len(header)} columns")
                for name, value in zip(header, row, strict=True):
                    table[name].append(value)
    except (UnicodeDecodeError, csv.Error) as error:
        raise KclError(f"{path} is no CSV file in UTF-8: {error}") from None
    return _table(path, table, labelled, label, columns)


def _parquet(path: Path, labelled: bool, label: str, columns: Sequence[str]) -> Samples:
    try:
        import pyarrow
        import pyarrow.parquet as parquet
    except ImportError:
        raise KclError(
            'reading Parquet needs pyarrow, which is missing: pip install "kernel-continual-learning[parquet]"'
        ) from None
    try:
        found = parquet.read_table(path)
        return _table(path, {name: found[name].to_pylist() for name in found.column_names}, labelled, label, columns)
    except pyarrow.ArrowException as error:
        raise KclError(f"{path} is no whole Parquet file: {error}") from None


def _table(path: Path, table: dict[str, Any], labelled: bool, label: str, columns: Sequence[str]) -> Samples:
    if labelled and label not in table:
        raise KclError(f"{path} has no column {label!r}; name the column of labels with --label: {', '.join(table)}")
    wanted = tuple(columns) or tuple(name for name in table if name != label)
    missing = [name for name in wanted if name not in table]
    if missing:
        raise KclError(f"{path} lacks the columns {', '.join(missing)}, which the model learned from")
    count = len(next(iter(table.values())))
    inputs = np.empty((count, len(wanted)), dtype=np.float32)
    for place, name in enumerate(wanted):
        for row, value in enumerate(table[name]):
            try:
                inputs[row, place] = float(value)
            except (TypeError, ValueError):
                raise KclError(
                    f"{path}, column {name!r}, sample {row + 1}: {str(value)[:40]!r} is not a number; "
                    "fill or leave out such samples"
                ) from None
    labels = np.array(table[label]) if labelled else None
    return Samples(inputs, labels, [str(row) for row in range(count)], wanted)
