"""miniImageNet: 100 classes of 600 images, 84 × 84; of each class the first 500 train and the last 100 test.

It may not be passed on, so it is never fetched. Under the folder given, else the one `KCL_DATA` names, else the cache,
in `miniimagenet`, in `mini-imagenet` or directly there, the first of these is used:

    miniimagenet-84.safetensors                  as `kcl data prepare miniimagenet` writes it; needs no Pillow
    n01532829/…, 100 class folders in all        600 images each, in the order of file names
    mini-imagenet-cache-{train,val,test}.pkl     the pickles that circulate, read by `pickles`, which runs nothing

The latter two are decoded once into the cache. Class k is line k of `miniimagenet_classes.CLASSES`.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, final

import numpy as np

from kcl.data import file_cache, image_folders, mapped_images, pickles
from kcl.data.dataset import Dataset
from kcl.data.file_cache import Say, quiet
from kcl.data.mapped_images import ImageSet
from kcl.data.miniimagenet_classes import CLASSES, TEST, TRAIN, VALIDATION
from kcl.data.source import DATA_VARIABLE, FileSource
from kcl.errors import KclError

SIDE, TRAIN_PER_CLASS, PER_CLASS = 84, 500, 600
PREPARED = "miniimagenet-84.safetensors"
PICKLES = {
    "mini-imagenet-cache-train.pkl": TRAIN,
    "mini-imagenet-cache-val.pkl": VALIDATION,
    "mini-imagenet-cache-test.pkl": TEST,
}
PLACE = (
    f"put one of these into DIR/miniimagenet and pass --data-dir DIR or set {DATA_VARIABLE}=DIR: 100 folders named by "
    f"WordNet number (n01532829, …) of 600 images each; or the files {', '.join(PICKLES)}; or {PREPARED}, which "
    "`kcl data prepare miniimagenet` writes where it has one of the others"
)
NO_FETCHING = "ImageNet's terms allow its images for research only and do not allow passing them on"


@final
class MiniImageNetSource(FileSource):
    """50,000 training and 10,000 test images, uint8 (n, 3, 84, 84), labels 0 … 99, mapped and never read whole."""

    name, title = "miniimagenet", "miniImageNet"
    licence = "ImageNet's terms of access: non-commercial research and education"
    size = "50,000 train + 10,000 test, 1,270 MB decoded, nothing to fetch"
    how_to_get = advice = f"kcl does not fetch it, as {NO_FETCHING}: {PLACE}"

    layouts = ("miniimagenet", "mini-imagenet", ".")

    def place_in(self, folder: Path) -> Path | None:
        if (folder / PREPARED).is_file():
            return folder / PREPARED
        in_parts = (folder / CLASSES[0]).is_dir() or all((folder / name).is_file() for name in PICKLES)
        return folder if in_parts else None

    def load(self, data_dir: Path | str | None = None, say: Say = quiet) -> Dataset:
        return _load(self.place(data_dir), say)[0]

    def fetch(self, say: Say = quiet) -> str:  # noqa: ARG002
        return str(self.place(None))

    def verify(self, data_dir: Path | str | None = None) -> Path:
        place = self.place(data_dir)
        if place.is_file():
            mapped_images.verify(place)
            _check(place, mapped_images.read(place)[0])
        else:
            for _ in _image_set(place).images():
                pass
        return place

    def prepare(self, data_dir: Path | None = None, out: Path | None = None, say: Say = quiet) -> Path:
        """Decode into one file, for machines without Pillow: in the cache, or below the folder `out`."""
        _, path = _load(self.place(data_dir), say)
        if out is None:
            return path
        final = out.expanduser() / self.layouts[0] / PREPARED
        if final.exists() and final.samefile(path):
            return final
        with file_cache.new_file(final) as private:
            shutil.copyfile(path, private)
        return final


MINIIMAGENET = MiniImageNetSource()


def _load(place: Path, say: Say) -> tuple[Dataset, Path]:
    """The images and the one file that holds them."""
    if place.is_file():
        return _check(place, mapped_images.read(place)[0]), place
    return mapped_images.load_cached(_image_set(place), say)


def _check(path: Path, dataset: Dataset) -> Dataset:
    expected = [(count * len(CLASSES), 3, SIDE, SIDE) for count in (TRAIN_PER_CLASS, PER_CLASS - TRAIN_PER_CLASS)]
    shapes = [tuple(inputs.shape) for inputs in (dataset.train_inputs, dataset.test_inputs)]
    if shapes != expected or dataset.class_names != CLASSES:
        raise KclError(f"{path} holds prepared images, but not those of miniImageNet: {shapes}, expected {expected}")
    return dataset


def _image_set(place: Path) -> ImageSet:
    if not (place / CLASSES[0]).is_dir():
        return _from_pickles(place)
    classes = image_folders.list_classes(place)
    for name in CLASSES:
        if (count := len(classes.get(name, ()))) != PER_CLASS:
            raise KclError(f"class {name} of miniImageNet has {count} images in {place}; expected {PER_CLASS}: {PLACE}")
    train = {name: classes[name][:TRAIN_PER_CLASS] for name in CLASSES}
    test = {name: classes[name][TRAIN_PER_CLASS:] for name in CLASSES}
    return image_folders.image_set("miniimagenet", SIDE, train, test)


def _from_pickles(place: Path) -> ImageSet:
    def images() -> Iterator[np.ndarray]:
        parts = [_read_pickle(place / name, classes) for name, classes in PICKLES.items()]
        for start, stop in ((0, TRAIN_PER_CLASS), (TRAIN_PER_CLASS, PER_CLASS)):
            for array, rows in (pair for part in parts for pair in part):
                yield array[rows[start:stop]].transpose(0, 3, 1, 2)

    return ImageSet(
        name="miniimagenet",
        side=SIDE,
        class_names=CLASSES,
        train_counts=(TRAIN_PER_CLASS,) * len(CLASSES),
        test_counts=(PER_CLASS - TRAIN_PER_CLASS,) * len(CLASSES),
        files=[place / name for name in PICKLES],
        images=images,
    )


def _read_pickle(path: Path, classes: tuple[str, ...]) -> list[tuple[np.ndarray, np.ndarray]]:
    """For each class: the array of all images, still in the file, and the rows of the class in it."""
    content: Any = pickles.read(path)
    images, members = (content.get(key) if isinstance(content, dict) else None for key in ("image_data", "class_dict"))
    shape = (len(classes) * PER_CLASS, SIDE, SIDE, 3)
    if not isinstance(images, np.ndarray) or images.shape != shape or images.dtype != np.uint8:
        raise KclError(f"{path} does not hold images of shape {shape} as bytes under 'image_data'")
    if not isinstance(members, dict) or set(members) != set(classes):
        raise KclError(f"{path} does not name the {len(classes)} classes of its part of miniImageNet in 'class_dict'")
    rows = [_rows(members[name], len(images)) for name in classes]
    if sorted(row for class_rows in rows for row in class_rows) != list(range(len(images))):
        raise KclError(f"{path}: 'class_dict' must list {PER_CLASS} rows for each class, and each row once")
    return [(images, np.array(class_rows)) for class_rows in rows]


def _rows(listed: Any, count: int) -> list[int]:
    """A class's list of rows, none for anything else; the length first, as one long list may stand for every class."""
    if isinstance(listed, np.ndarray) and listed.size == PER_CLASS:
        listed = listed.ravel().tolist()
    valid = isinstance(listed, list) and len(listed) == PER_CLASS
    return listed if valid and all(isinstance(row, int) and 0 <= row < count for row in listed) else []
