"""Decoded images: an image is decoded once, then mapped from one file in the cache.

The file is found by content. Its key is a hash of every byte of every file the images are made of. Hashing all of them
at each start would take long for large photographs, so the key is stored under a list of their names, sizes and
modification times: only files that look different are read again.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from kcl.core.opening import regular
from kcl.data import file_cache, mapped_images
from kcl.data.dataset import Dataset
from kcl.data.file_cache import Say
from kcl.data.mapped_images import ImageSet
from kcl.errors import KclError

FOLDER = "images"


def load(images: ImageSet, say: Say) -> tuple[Dataset, Path]:
    """The images from the cache, decoded into it first if need be, and the file that holds them."""
    folder = file_cache.cache_dir() / FOLDER
    key = _key(images, folder)
    path = folder / f"{images.name}-{images.side}-{key[:16]}.safetensors"
    if path.exists():
        try:
            dataset, source = mapped_images.read(path)
            if source == key:
                return dataset, path
            say(f"{path} holds other images than its name says; decoding them again")
        except KclError as error:
            say(f"{error}; decoding them again")
    count, side = sum(images.train_counts) + sum(images.test_counts), images.side
    say(f"decoding {count} images once, to {side} × {side}: {count * 3 * side**2 / 1e6:.0f} MB in {folder}")
    with file_cache.workshop(folder) as private:
        mapped_images.write(private / path.name, images, key)
        file_cache.publish(private / path.name, path)
    return mapped_images.read(path)[0], path


def _key(images: ImageSet, folder: Path) -> str:
    """The hash of the images' files: read from its note if they look the same as before, else computed and noted."""
    about = [images.name, images.side, images.class_names, images.train_counts, images.test_counts]
    key = hashlib.sha256(json.dumps([mapped_images.FORMAT, *about]).encode())
    listing = key.copy()
    try:
        for path in images.files:
            status = path.stat()
            line = f"{path.absolute()}\0{status.st_size}\0{status.st_mtime_ns}\0"
            listing.update(line.encode(errors="surrogateescape"))
        note = folder / "known" / listing.hexdigest()
        if note.is_file() and len(known := note.read_text()) == 64:
            return known
        for path in images.files:
            with open(path, "rb", opener=regular) as file:
                key.update(hashlib.file_digest(file, "sha256").digest())
    except OSError as error:
        raise KclError(f"{error.filename} cannot be read: {error.strerror or error}") from None
    with file_cache.workshop(note.parent) as private:
        (private / note.name).write_text(key.hexdigest())
        file_cache.publish(private / note.name, note)
    return key.hexdigest()
