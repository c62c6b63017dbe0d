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
from array import array
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from kcl.data import image_files, image_folders
from kcl.data.file_cache import quiet
from kcl.errors import KclError

LARGEST = 2**34
"""Bytes of arrays that are read into memory at most."""
DEFAULT_LABEL = "label"
_INPUTS, _LABELS = ("inputs", "x", "X"), ("labels", "y")
_INDEX = "__index_level_"
"""How pandas names the columns it keeps an index in."""


class Samples(NamedTuple):
    """Samples in order; `names` tell them apart in what is answered, `columns` where they are rows of a table."""

    inputs: np.ndarray
    labels: np.ndarray | None
    names: Sequence[str]
    columns: tuple[str, ...] = ()


def read(
    path: Path,
    labelled: bool,
    label: str = DEFAULT_LABEL,
    side: int | None = None,
    columns: Sequence[str] = (),
    say: Callable[[str], None] = quiet,
) -> Samples:
    """Samples to learn from (`labelled`) or to be answered. `columns`: those of a table that are wanted, in order."""
    path = path.expanduser()
    try:
        samples = _read(path, labelled, label, image_folders.DEFAULT_SIDE if side is None else side, columns, say)
    except OSError as error:
        raise KclError(f"{path} cannot be read: {error.strerror or error}") from None
    if len(samples.inputs) == 0:
        raise KclError(f"{path} holds no samples")
    return samples


def _read(
    path: Path, labelled: bool, label: str, side: int, columns: Sequence[str], say: Callable[[str], None]
) -> Samples:
    if path.is_dir() or path.suffix.lower() in image_files.SUFFIXES:
        return _images(path, labelled, side, say)
    if not path.is_file():
        raise KclError(f"{path} is not there; expected a folder of images, or a .npz, .csv or .parquet file")
    readers = {".npz": _arrays, ".csv": _csv, ".parquet": _parquet}
    if path.suffix.lower() not in readers:
        raise KclError(f"{path}: expected a folder of images, or a file that ends in {', '.join(readers)}")
    return readers[path.suffix.lower()](path, labelled, label, columns)


def _images(path: Path, labelled: bool, side: int, say: Callable[[str], None]) -> Samples:
    image_folders.check_side(side)
    if labelled:
        if not path.is_dir():
            raise KclError(
                f"{path} is one image; to learn, give a folder that holds a folder of images for every class"
            )
        classes = image_folders.list_classes(path, say, least=1)
        for name in (name for name, own in classes.items() if not own):
            raise KclError(f"class {name!r} of {path} has no JPEG, PNG or WebP images; add some or take the folder out")
        files = [file for own in classes.values() for file in own]
        labels = np.array([name for name, own in classes.items() for _ in own])
    else:
        found = sorted(path.rglob("*")) if path.is_dir() else [path]
        files = [file for file in found if image_folders.is_image(file)]
        labels = None
    if not files:
        raise KclError(f"{path} holds no JPEG, PNG or WebP images")
    if len(files) * 3 * side**2 > LARGEST:
        raise KclError(f"the {len(files)} images of {path} take more than {LARGEST} bytes at {side} × {side}")
    names = [str(file.relative_to(path)) if path.is_dir() else file.name for file in files]
    return Samples(np.concatenate(list(image_files.decode_all(files, side))), labels, names)


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
    numbers, labels = array("f"), list[str]()
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            rows = csv.reader(file)
            header = next(rows, [])
            if not header or len(set(header)) != len(header):
                raise KclError(f"{path}: expected a first line with the name of every column, each once")
            wanted = _wanted(path, header, labelled, label, columns)
            places = [header.index(name) for name in wanted]
            for number, row in enumerate((row for row in rows if row), start=1):
                if len(row) != len(header):
                    raise KclError(f"{path}, line {rows.line_num}: {len(row)} values for {len(header)} columns")
                try:
                    numbers.extend([float(row[place]) for place in places])
                except ValueError:
                    name = next(name for name in wanted if not _is_number(row[header.index(name)]))
                    raise _no_number(path, name, number, row[header.index(name)]) from None
                labels += [row[header.index(label)]] if labelled else []
    except (UnicodeDecodeError, csv.Error) as error:
        raise KclError(f"{path} is no CSV file in UTF-8: {error}") from None
    inputs = np.frombuffer(numbers, dtype=np.float32).reshape(-1, len(wanted))
    return _table(path, inputs, np.array(labels) if labelled else None, wanted)


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
        there = [name for name in found.column_names if not name.startswith(_INDEX)]
        wanted = _wanted(path, there, labelled, label, columns)
        inputs = np.empty((found.num_rows, len(wanted)), dtype=np.float32)
        for place, name in enumerate(wanted):
            values = found[name].to_numpy()
            try:
                if values.dtype.kind not in "biufO":  # moments in time would be taken for numbers
                    raise TypeError
                inputs[:, place] = values
            except (TypeError, ValueError):
                row = next((row for row, value in enumerate(values.tolist()) if not _is_number(value)), 0)
                raise _no_number(path, name, row + 1, values[row]) from None
        labels = np.array(found[label].to_pylist()) if labelled else None
        return _table(path, inputs, labels, wanted)
    except pyarrow.ArrowException as error:
        raise KclError(f"{path} is no whole Parquet file: {error}") from None


def _wanted(path: Path, there: Sequence[str], labelled: bool, label: str, columns: Sequence[str]) -> tuple[str, ...]:
    """The columns to learn from or to be answered: those the model knows, or else all but the labels."""
    if labelled and label not in there:
        raise KclError(f"{path} has no column {label!r}; name the column of labels with --label: {', '.join(there)}")
    wanted = tuple(columns) or tuple(name for name in there if name != label)
    missing = [name for name in wanted if name not in there]
    if missing:
        raise KclError(f"{path} lacks the columns {', '.join(missing)}, which the model learned from")
    if not all(name.strip() for name in wanted):
        raise KclError(f"{path} has a column without a name, such as pandas' index: write it with index=False")
    if not wanted:
        raise KclError(f"{path} has no column beside {label!r} to learn from")
    return wanted


def _table(path: Path, inputs: np.ndarray, labels: np.ndarray | None, columns: tuple[str, ...]) -> Samples:
    broken = np.argwhere(~np.isfinite(inputs))
    if len(broken):
        row, place = broken[0]
        raise _no_number(path, columns[place], row + 1, inputs[row, place])
    unnamed = [] if labels is None else [row for row, value in enumerate(labels.tolist()) if value in (None, "")]
    if unnamed:
        raise KclError(f"{path}, sample {unnamed[0] + 1}: it has no label; fill or leave out such samples")
    return Samples(inputs, labels, [str(row) for row in range(len(inputs))], columns)


def _is_number(value: Any) -> bool:
    try:
        float(value)
    except (TypeError, ValueError):
        return False
    return True


def _no_number(path: Path, column: str, sample: int, value: Any) -> KclError:
    return KclError(
        f"{path}, column {column!r}, sample {sample}: {str(value)[:40]!r} is not a finite number; "
        "fill or leave out such samples"
    )
