"""A user's samples from a file or a folder: images, .npz, CSV or Parquet; with labels for training, else without.

folder       CLASS/… with images for training; images at any depth for prediction
image file   one image for prediction
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
"""The most bytes of arrays that are read into memory."""
DEFAULT_LABEL = "label"
_INPUTS, _LABELS = ("inputs", "x", "X"), ("labels", "y")
_INDEX = "__index_level_"
"""The beginning of the names of pandas' index columns."""


class Samples(NamedTuple):
    """Samples in order. `names` identify them in predictions; `columns` are those of a table."""

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
    """Samples for training (`labelled`) or for prediction. `columns`: the columns of a table to read, in order."""
    path = path.expanduser()
    suffix, readers = path.suffix.lower(), {".npz": _arrays, ".csv": _csv, ".parquet": _parquet}
    try:
        if path.is_dir() or suffix in image_files.SUFFIXES:
            samples = _images(path, labelled, image_folders.DEFAULT_SIDE if side is None else side, say)
        elif not path.is_file():
            raise KclError(f"{path} is not there; expected a folder of images, or a .npz, .csv or .parquet file")
        elif suffix not in readers:
            raise KclError(f"{path}: expected a folder of images, or a file that ends in {', '.join(readers)}")
        else:
            samples = readers[suffix](path, labelled, label, columns)
    except OSError as error:
        raise KclError(f"{path} cannot be read: {error.strerror or error}") from None
    if len(samples.inputs) == 0:
        raise KclError(f"{path} holds no samples")
    return samples


def _images(path: Path, labelled: bool, side: int, say: Callable[[str], None]) -> Samples:
    image_folders.check_side(side)
    if labelled:
        if not path.is_dir():
            raise KclError(
                f"{path} is one image; training needs a folder that holds a folder of images for every class"
            )
        classes = image_folders.list_classes(path, say, least=1)
        if empty := [name for name, images in classes.items() if not images]:
            raise KclError(
                f"class {empty[0]!r} of {path} has no JPEG, PNG or WebP images; add some or remove the folder"
            )
        files = [file for images in classes.values() for file in images]
        labels = np.array([name for name, images in classes.items() for _ in images])
    else:
        files = [
            file for file in (sorted(path.rglob("*")) if path.is_dir() else [path]) if image_folders.is_image(file)
        ]
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
            inputs = _first(_INPUTS, arrays, path)
            labels = _first(_LABELS, arrays, path) if labelled else None
    except (ValueError, zipfile.BadZipFile, EOFError) as error:
        raise KclError(f"{path} is not a valid .npz file of plain arrays: {error}") from None
    if inputs.dtype.kind not in "fiub" or inputs.ndim < 2:
        raise KclError(f"{path}: inputs of shape {inputs.shape} and type {inputs.dtype}; expected rows of numbers")
    return Samples(inputs, labels, [str(row) for row in range(len(inputs))])


def _first(names: Sequence[str], arrays: Any, path: Path) -> np.ndarray:
    for name in names:
        if name in arrays.files:
            return arrays[name]
    raise KclError(f"{path} has no array named {' or '.join(names)}; it has {', '.join(arrays.files) or 'none'}")


def _csv(path: Path, labelled: bool, label: str, columns: Sequence[str]) -> Samples:
    numbers, labels = array("f"), list[str]()
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            rows = csv.reader(file)
            header = next(rows, [])
            if not header or len(set(header)) != len(header):
                raise KclError(f"{path}: expected a first line with the name of every column, each once")
            input_columns = _input_columns(path, header, labelled, label, columns)
            places = [header.index(name) for name in input_columns]
            for number, row in enumerate((row for row in rows if row), start=1):
                if len(row) != len(header):
                    raise KclError(f"{path}, line {rows.line_num}: {len(row)} values for {len(header)} columns")
                try:
                    numbers.extend([float(row[place]) for place in places])
                except ValueError:
                    place = next(place for place in places if not _is_number(row[place]))
                    raise _no_number(path, header[place], number, row[place]) from None
                labels += [row[header.index(label)]] if labelled else []
    except (UnicodeDecodeError, csv.Error) as error:
        raise KclError(f"{path} is not a CSV file in UTF-8: {error}") from None
    inputs = np.frombuffer(numbers, dtype=np.float32).reshape(-1, len(places))
    return _table(path, inputs, np.array(labels) if labelled else None, input_columns)


def _parquet(path: Path, labelled: bool, label: str, columns: Sequence[str]) -> Samples:
    try:
        import pyarrow
        import pyarrow.parquet as parquet
    except ImportError:
        raise KclError(
            'reading Parquet needs pyarrow, which is missing: pip install "kernel-continual-learning[parquet]"'
        ) from None
    try:
        table = parquet.read_table(path)
        present = [name for name in table.column_names if not name.startswith(_INDEX)]
        input_columns = _input_columns(path, present, labelled, label, columns)
        inputs = np.empty((table.num_rows, len(input_columns)), dtype=np.float32)
        for place, name in enumerate(input_columns):
            values = table[name].to_numpy()
            try:
                if values.dtype.kind not in "biufO":  # times would be taken for numbers
                    raise TypeError
                inputs[:, place] = values
            except (TypeError, ValueError):
                row = next((row for row, value in enumerate(values.tolist()) if not _is_number(value)), 0)
                raise _no_number(path, name, row + 1, values[row]) from None
        labels = np.array(table[label].to_pylist()) if labelled else None
        return _table(path, inputs, labels, input_columns)
    except pyarrow.ArrowException as error:
        raise KclError(f"{path} is not a valid Parquet file: {error}") from None


def _input_columns(
    path: Path, present: Sequence[str], labelled: bool, label: str, columns: Sequence[str]
) -> tuple[str, ...]:
    """The columns of inputs: those the model knows, or else all but the label."""
    if labelled and label not in present:
        raise KclError(f"{path} has no column {label!r}; name the label column with --label: {', '.join(present)}")
    names = tuple(columns) or tuple(name for name in present if name != label)
    if missing := [name for name in names if name not in present]:
        raise KclError(f"{path} lacks the columns {', '.join(missing)}, which the model was trained on")
    if not all(name.strip() for name in names):
        raise KclError(f"{path} has a column without a name, such as pandas' index: write it with index=False")
    if not names:
        raise KclError(f"{path} has no column besides {label!r} to learn from")
    return names


def _table(path: Path, inputs: np.ndarray, labels: np.ndarray | None, columns: tuple[str, ...]) -> Samples:
    not_finite = np.argwhere(~np.isfinite(inputs))
    if len(not_finite):
        row, place = not_finite[0]
        raise _no_number(path, columns[place], row + 1, inputs[row, place])
    unlabelled = [] if labels is None else [row for row, value in enumerate(labels.tolist()) if value in (None, "")]
    if unlabelled:
        raise KclError(f"{path}, sample {unlabelled[0] + 1}: it has no label; fill in or remove such samples")
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
        "fill in or remove such samples"
    )
