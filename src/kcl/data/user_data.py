"""A user's samples from a file or a folder: images, .npz, CSV or Parquet; with labels for training, else without.

folder       CLASS/… with images for training; images at any depth for prediction
image file   one image for prediction
.npz         arrays `inputs` (or `x`, `X`) and `labels` (or `y`), never pickled objects; `kcl features` adds
             `kcl_names` of the samples and `kcl_columns`, which only fit a model of the same columns
.csv         a header, one column of labels, numbers in all others
.parquet     the same
"""

from __future__ import annotations

import csv
import io
import zipfile
from array import array
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from kcl.core.files import write_whole
from kcl.core.opening import brief, reading
from kcl.core.packages import load_package
from kcl.data import image_files, image_folders
from kcl.data.file_cache import Say, quiet
from kcl.errors import KclError

LARGEST = 2**34
"""The most bytes of arrays that are read into memory."""
LONGEST_REASON = 300
DEFAULT_LABEL = "label"
_INPUTS, _LABELS = ("inputs", "x", "X"), ("labels", "y")
_NAMES, _COLUMNS = "kcl_names", "kcl_columns"
_INDEX = "__index_level_"
"""The beginning of the names of pandas' index columns."""


class Samples(NamedTuple):
    """Samples in order. `names` identify them in predictions; `columns` are those of a table."""

    inputs: np.ndarray
    labels: np.ndarray | None
    names: Sequence[str]
    columns: tuple[str, ...] = ()


@np.errstate(over="ignore", invalid="ignore")  # what becomes infinite is refused
def read(
    path: Path,
    labelled: bool,
    label: str = DEFAULT_LABEL,
    side: int | None = None,
    columns: Sequence[str] = (),
    say: Say = quiet,
) -> Samples:
    """Samples for training (`labelled`) or for prediction. `columns`: the columns of a table to read, in order."""
    path = path.expanduser()
    suffix, tables = path.suffix.lower(), {".csv": _csv, ".parquet": _parquet}
    try:
        # Anything but a folder and a regular file, such as a pipe or a device, could be read for ever.
        if not path.is_dir() and not path.is_file():
            raise KclError(f"{path} does not exist or is not a file; expected images, or a .npz, .csv or .parquet file")
        if path.is_dir() or suffix in image_files.SUFFIXES:
            samples = _images(path, labelled, side, say)
        elif suffix == ".npz":
            samples = _arrays(path, labelled, columns)
        elif suffix in tables:
            choose = partial(_choose_columns, path, labelled, label, columns, say)
            samples = _check_table(path, tables[suffix](path, label if labelled else None, choose))
        else:
            raise KclError(f"{path}: expected a folder of images, or a file that ends in .npz, .csv or .parquet")
    except OSError as error:
        raise KclError(f"{path} cannot be read: {brief(error.strerror or error)}") from None
    except KclError as error:  # names in a file may be of any length
        raise KclError(str(error)[: len(str(path)) + LONGEST_REASON]) from None
    if len(samples.inputs) == 0:
        raise KclError(f"{path} holds no samples")
    return samples


def image_paths(path: Path, labelled: bool, say: Say = quiet) -> tuple[list[Path], np.ndarray | None, list[str]]:
    """The image files of a folder, with the classes of those for training and the names of the others."""
    labels = None
    if not path.exists():
        raise KclError(f"{path} does not exist; expected a folder of images")
    if labelled and not path.is_dir():
        raise KclError(f"{path} is one image; training needs a folder that holds a folder of images for every class")
    if labelled:
        classes = image_folders.list_classes(path, say, least=1)
        if empty := [name for name, images in classes.items() if not images]:
            raise KclError(f"class {empty[0]!r} of {path} has no images; add JPEG, PNG or WebP files or remove it")
        files = [file for images in classes.values() for file in images]
        labels = np.array([name for name, images in classes.items() for _ in images])
    else:
        candidates = sorted(path.rglob("*")) if path.is_dir() else [path]
        files = [file for file in candidates if image_folders.is_image(file)]
    if not files:
        raise KclError(f"{path} holds no JPEG, PNG or WebP images")
    return files, labels, [str(file.relative_to(path)) if path.is_dir() else file.name for file in files]


def _images(path: Path, labelled: bool, side: int | None, say: Say) -> Samples:
    """Images of one side; by default their own, but none larger than those of miniImageNet."""
    if side is not None:
        image_folders.check_side(side)
    files, labels, names = image_paths(path, labelled, say)
    if side is None:
        side = image_files.usual_side(files, image_folders.SMALLEST_SIDE, image_folders.DEFAULT_SIDE)
    if len(files) * 3 * side**2 > LARGEST:
        raise KclError(f"the {len(files)} images of {path} take more than {LARGEST} bytes at {side} × {side}")
    return Samples(np.concatenate(list(image_files.decode_all(files, side))), labels, names)


def _arrays(path: Path, labelled: bool, columns: Sequence[str]) -> Samples:
    """Bytes stay as they are; all other numbers become single precision."""
    try:
        with zipfile.ZipFile(path) as archive:
            size = sum(entry.file_size for entry in archive.infolist())
        if size > LARGEST:
            raise KclError(f"{path} holds {size} bytes of arrays; at most {LARGEST} are read")
        with np.load(path, allow_pickle=False) as arrays:
            inputs = _first(_INPUTS, arrays, path)
            labels = _first(_LABELS, arrays, path) if labelled else None
            texts = (arrays[name].ravel() if name in arrays.files else [] for name in (_NAMES, _COLUMNS))
            names, present = (list(map(str, values)) for values in texts)
        if inputs.dtype.kind not in "fiub" or inputs.ndim < 2 or 0 in inputs.shape[1:]:
            raise KclError(f"{path}: expected rows of numbers, not inputs of shape {inputs.shape} ({inputs.dtype.str})")
        if labels is not None and labels.shape != inputs.shape[:1]:
            raise KclError(f"{path}: {len(inputs)} inputs need one label each, not labels of shape {labels.shape}")
        if labels is not None:
            labels.tolist()  # fails for text that is none
    except (KclError, OSError):
        raise
    # zipfile and NumPy report what is damaged, encrypted or untrue in many ways: zlib.error, RuntimeError, TokenError …
    except Exception as error:
        raise KclError(f"{path} is not a valid .npz file of plain arrays: {brief(error)}") from None
    if inputs.ndim == 4 and inputs.shape[3] in (1, 3, 4) and min(inputs.shape[1:3]) > 4:
        advice = "give them channels first: inputs.transpose(0, 3, 1, 2)"
        raise KclError(f"{path}: images of shape {inputs.shape[1:]} have their channels last; {advice}")
    if inputs.ndim == 4 and inputs.shape[1] == 3 and min(inputs.shape[2:]) < image_folders.SMALLEST_SIDE:
        raise KclError(f"{path}: colour images of shape {inputs.shape[1:]}; expected at least 8 × 8 pixels")
    if inputs.dtype != np.uint8:
        inputs = inputs.astype(np.float32)
        if place := _not_finite(inputs):
            where = f"inputs[{', '.join(map(str, place))}]"
            raise _no_number(path, where, inputs[place])
    if (names and len(names) != len(inputs)) or (present and len(present) != inputs.shape[1]):
        raise KclError(f"{path}: {_NAMES} and {_COLUMNS} do not match inputs of shape {inputs.shape}")
    if columns and present and list(columns) != present:
        raise KclError(f"{path} holds features of another network or preparation than the model was trained on")
    return Samples(inputs, labels, names or [str(row) for row in range(len(inputs))], tuple(present))


def write_arrays(path: Path, samples: Samples) -> None:
    """An .npz file of samples, whole or not at all."""
    arrays = {"x": samples.inputs, _NAMES: np.array(samples.names), _COLUMNS: np.array(samples.columns)}
    if samples.labels is not None:
        arrays["y"] = samples.labels
    content = io.BytesIO()
    np.savez(content, **arrays)  # type: ignore[arg-type]
    write_whole(path, content.getvalue())


def _first(names: Sequence[str], arrays: Any, path: Path) -> np.ndarray:
    for name in names:
        if name in arrays.files:
            if not isinstance(found := arrays[name], np.ndarray):
                raise ValueError(f"{name} is not an array")
            return found
    raise KclError(f"{path} has no array named {' or '.join(names)}; it has {brief(', '.join(arrays.files)) or 'none'}")


def _csv(path: Path, label: str | None, choose: Callable[[Sequence[str]], tuple[str, ...]]) -> Samples:
    numbers, labels = array("f"), list[str]()
    with (
        reading(path, "a CSV file in UTF-8", UnicodeDecodeError, csv.Error),
        path.open(newline="", encoding="utf-8-sig") as file,
    ):
        rows = csv.reader(file)
        header = next(rows, [])
        if len(header) == 1 and ";" in header[0]:
            raise KclError(f"{path} is separated by semicolons; save it with commas, and with points in numbers")
        columns = choose(header)
        places = [header.index(name) for name in columns]
        for number, row in enumerate((row for row in rows if row), start=1):
            if len(row) != len(header):
                raise KclError(f"{path}, line {rows.line_num}: {len(row)} values for {len(header)} columns")
            try:
                numbers.extend([float(row[place]) for place in places])
            except ValueError:
                place = next(place for place in places if not _is_number(row[place]))
                raise _no_number(path, f"column {header[place]!r}, sample {number}", row[place]) from None
            if label is not None:
                labels.append(row[header.index(label)])
    inputs = np.frombuffer(numbers, dtype=np.float32).reshape(-1, len(places))
    return Samples(inputs, None if label is None else np.array(labels), (), columns)


def _parquet(path: Path, label: str | None, choose: Callable[[Sequence[str]], tuple[str, ...]]) -> Samples:
    parquet = load_package("pyarrow.parquet", "parquet", "reading Parquet needs pyarrow")
    import pyarrow

    with reading(path, "a valid Parquet file", pyarrow.ArrowException):
        table = parquet.read_table(path)
        columns = choose([name for name in table.column_names if not name.startswith(_INDEX)])
        if label is not None and pyarrow.types.is_nested(table[label].type):
            raise KclError(f"{path}: the column {label!r} holds lists; expected one label for each sample")
        inputs = np.empty((table.num_rows, len(columns)), dtype=np.float32)
        for place, name in enumerate(columns):
            values = table[name].to_numpy()
            try:
                if values.dtype.kind not in "biufO":  # times would be taken for numbers
                    raise TypeError
                inputs[:, place] = values
            except (TypeError, ValueError):
                row = next((row for row, value in enumerate(values.tolist()) if not _is_number(value)), 0)
                raise _no_number(path, f"column {name!r}, sample {row + 1}", values[row]) from None
        return Samples(inputs, None if label is None else np.array(table[label].to_pylist()), (), columns)


def _choose_columns(
    path: Path, labelled: bool, label: str, columns: Sequence[str], say: Say, present: Sequence[str]
) -> tuple[str, ...]:
    """The columns of inputs: those the model knows, or else all but the label."""
    if not present or len(set(present)) != len(present):
        raise KclError(f"{path}: expected a first line with the name of every column, each once")
    if labelled and label not in present:
        raise KclError(f"{path} has no column {label!r}; choose the label column with --label: {', '.join(present)}")
    names = tuple(columns) or tuple(name for name in present if name != label)
    if missing := [name for name in names if name not in present]:
        raise KclError(f"{path} lacks the columns {', '.join(missing)}, which the model was trained on")
    if not all(name.strip() for name in names):
        raise KclError(f"{path} has a column without a name, such as pandas' index: write it with index=False")
    if not names:
        raise KclError(f"{path} has no column besides {label!r} to learn from")
    if extra := [name for name in present if name not in (*names, label)]:
        say(f"{path}: not used, as the model was trained without them: {', '.join(extra)}")
    return names


def _check_table(path: Path, table: Samples) -> Samples:
    if place := _not_finite(table.inputs):
        where = f"column {table.columns[place[1]]!r}, sample {place[0] + 1}"
        raise _no_number(path, where, table.inputs[place])
    labels = [] if table.labels is None else table.labels.tolist()
    if unlabelled := [row for row, value in enumerate(labels) if value in (None, "")]:
        raise KclError(f"{path}, sample {unlabelled[0] + 1}: it has no label; fill in or remove such samples")
    return table._replace(names=[str(row) for row in range(len(table.inputs))])


def _not_finite(inputs: np.ndarray) -> tuple[int, ...]:
    """The place of the first value that is infinite or NaN; empty if there is none."""
    finite = np.isfinite(inputs)
    return () if finite.all() else tuple(map(int, np.unravel_index(finite.argmin(), finite.shape)))


def _is_number(value: Any) -> bool:
    try:
        float(value)
    except (TypeError, ValueError):
        return False
    return True


def _no_number(path: Path, where: str, value: Any) -> KclError:
    advice = "fill in or remove such samples, or the whole column"
    return KclError(f"{path}, {where}: {str(value)[:40]!r} is not a finite number; {advice}")
