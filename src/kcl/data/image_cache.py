"""Decoded images, kept: an image is decoded once, then mapped from one file in the cache.

The file is found by content. Its key is a hash of every byte of every file the images are made of. To hash all of them
at each start would take long for large photographs, so the key is remembered under a list of their names, sizes and
times of change: only files that look different are read again.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from kcl.data import file_cache, mapped_images
from kcl.data.dataset import Dataset
from kcl.errors import KclError

FOLDER = "images"


@dataclass(frozen=True)
class Source:
    """Where images come from: the files that decide them, in order, and how they are read."""

    name: str
    side: int
    class_names: tuple[str, ...]
    train_counts: tuple[int, ...]
    test_counts: tuple[int, ...]
    files: Sequence[Path]
    images: Callable[[], Iterator[np.ndarray]]

    def description(self) -> str:
        """What decides the result beside the files' bytes."""
        return json.dumps(
            [mapped_images.FORMAT, self.name, self.side, self.class_names, self.train_counts, self.test_counts]
        )

    def labels(self) -> tuple[np.ndarray, np.ndarray]:
        """The images come class by class, those to train on before those to test on."""
        numbers = np.arange(len(self.class_names))
        return numbers.repeat(self.train_counts), numbers.repeat(self.test_counts)


def load(source: Source, cache_dir: Path | None, say: Callable[[str], None]) -> tuple[Dataset, Path]:
    """The source's images from the cache, put there first if need be, and the file that holds them."""
    folder = file_cache.cache_dir(cache_dir) / FOLDER
    key = _key(source, folder)
    path = folder / f"{source.name}-{source.side}-{key[:16]}.safetensors"
    if path.exists():
        try:
            dataset, made_of = mapped_images.read(path)
            if made_of == key:
                return dataset, path
            say(f"{path} holds other images than its name says; it is made anew")
        except KclError as error:
            say(f"{error}; it is made anew")
    count, side = sum(source.train_counts) + sum(source.test_counts), source.side
    say(f"decoding {count} images once, to {side} × {side}: {count * 3 * side**2 / 1e6:.0f} MB in {folder}")
    contents = mapped_images.Contents(source.name, key, source.class_names, *source.labels())
    with file_cache.workshop(folder) as private:
        mapped_images.write(private / path.name, contents, side, source.images())
        file_cache.publish(private / path.name, path)
    return mapped_images.read(path)[0], path


def usage(cache_dir: Path | None = None) -> tuple[Path, int]:
    """The folder of decoded images and the bytes in it."""
    folder = file_cache.cache_dir(cache_dir) / FOLDER
    return folder, sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def clear(cache_dir: Path | None = None) -> tuple[Path, int]:
    """Remove the decoded images, which can be made again; what was fetched stays. Answers what was there."""
    folder, size = usage(cache_dir)
    try:
        if folder.exists():
            shutil.rmtree(folder)
    except OSError as error:
        raise KclError(f"{folder} cannot be removed: {error.strerror or error}") from None
    return folder, size


def _key(source: Source, folder: Path) -> str:
    """The hash of the source's content: remembered, or made and remembered."""
    listed = hashlib.sha256(source.description().encode())
    try:
        for path in source.files:
            status = path.stat()
            seen = f"{path.absolute()}\0{status.st_size}\0{status.st_mtime_ns}\0"
            listed.update(seen.encode(errors="surrogateescape"))
        note = folder / "known" / listed.hexdigest()
        if note.is_file() and len(known := note.read_text()) == 64:
            return known
        key = hashlib.sha256(source.description().encode())
        for path in source.files:
            with path.open("rb") as file:
                key.update(hashlib.file_digest(file, "sha256").digest())
    except OSError as error:
        raise KclError(f"{error.filename} cannot be read: {error.strerror or error}") from None
    with file_cache.workshop(note.parent) as private:
        (private / note.name).write_text(key.hexdigest())
        file_cache.publish(private / note.name, note)
    return key.hexdigest()
