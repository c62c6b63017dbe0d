"""A user's images: one folder per class.

Either `PATH/train/CLASS/…` and `PATH/test/CLASS/…` with the same classes in both, or `PATH/CLASS/…`, where the last
sixth of every class in the order of file names (rounded down, at least one) is the test set, as 100 of miniImageNet's
600 images are. Classes are numbered in the order of their names.
"""

from __future__ import annotations

from pathlib import Path

from kcl.core.opening import reading
from kcl.data import image_files
from kcl.data.dataset import Dataset
from kcl.data.file_cache import Say, quiet
from kcl.data.mapped_images import ImageSet, load_cached
from kcl.errors import KclError

DEFAULT_SIDE, SMALLEST_SIDE, LARGEST_SIDE = 84, 8, 1024
TEST_SHARE = 6
LEAST_TRAIN, LEAST_TEST = 2, 1
# Left behind by file managers, not reported.
LITTER = ("thumbs.db", "desktop.ini")

Classes = dict[str, list[Path]]


def load(root: Path, side: int = DEFAULT_SIDE, say: Say = quiet) -> Dataset:
    """The images under a folder, uint8 (n, 3, side, side), mapped from the cache."""
    check_side(side)
    train, test = split(root.expanduser(), say)
    return load_cached(image_set("folder", side, train, test), say)[0]


def check_side(side: int) -> None:
    if not SMALLEST_SIDE <= side <= LARGEST_SIDE:
        raise KclError(f"the image size must lie in {SMALLEST_SIDE} … {LARGEST_SIDE} pixels, not {side}")


def image_set(name: str, side: int, train: Classes, test: Classes) -> ImageSet:
    """The listed image files, to be decoded to one size."""
    files = [path for part in (train, test) for paths in part.values() for path in paths]
    return ImageSet(
        name=name,
        side=side,
        class_names=tuple(train),
        train_counts=tuple(map(len, train.values())),
        test_counts=tuple(map(len, test.values())),
        files=files,
        images=lambda: image_files.decode_all(files, side),
    )


def split(root: Path, say: Say = quiet) -> tuple[Classes, Classes]:
    """Training and test files by class; KclError if a class has too few of either."""
    if not root.is_dir():
        raise KclError(f"{root} is not a folder; expected one that holds a folder of images for every class")
    folders = [root / "train", root / "test"]
    exist = [folder.is_dir() for folder in folders]
    if not any(exist):
        train, test = _cut(list_classes(root, say))
    elif all(exist):
        train, test = (list_classes(folder, say) for folder in folders)
        if differing := sorted(set(train) ^ set(test)):
            names = ", ".join(differing[:5])
            raise KclError(f"{root}: in train or in test only: {names}; expected the same class folders in both")
    else:
        raise KclError(f"{root} has one of the folders train and test; expected both of them, or one folder per class")
    for purpose, classes, least in (("train on", train, LEAST_TRAIN), ("test on", test, LEAST_TEST)):
        for name, paths in classes.items():
            if len(paths) < least:
                raise KclError(
                    f"class {name!r} of {root} has {len(paths)} images to {purpose} and needs {least}: "
                    f"add images or remove the class"
                )
    return train, test


def list_classes(folder: Path, say: Say = quiet, least: int = 2) -> Classes:
    """The image files of every class, sorted by name; files that are no images are skipped and reported."""
    skipped: list[Path] = []
    with reading(folder):
        entries = sorted(entry for entry in folder.iterdir() if not _is_litter(entry))
        classes = {entry.name: _images(entry, skipped) for entry in entries if entry.is_dir()}
    skipped += [entry for entry in entries if not entry.is_dir()]
    if skipped:
        others = f" and {len(skipped) - 1} more" if len(skipped) > 1 else ""
        say(f"skipped, not a JPEG, PNG or WebP image of a class: {skipped[0]}{others}")
    if len(classes) < least:
        raise KclError(f"{folder} holds {len(classes)} class folders; expected one folder of images for each class")
    return classes


def _images(folder: Path, skipped: list[Path]) -> list[Path]:
    files = sorted(entry for entry in folder.iterdir() if not _is_litter(entry))
    images = [path for path in files if is_image(path)]
    skipped += sorted(set(files) - set(images))
    return images


def is_image(path: Path) -> bool:
    return path.suffix.lower() in image_files.SUFFIXES and path.is_file() and not _is_litter(path)


def _is_litter(path: Path) -> bool:
    return path.name.startswith(".") or path.name.lower() in LITTER


def _cut(classes: Classes) -> tuple[Classes, Classes]:
    sizes = {name: max(1, len(paths) // TEST_SHARE) if paths else 0 for name, paths in classes.items()}
    train = {name: paths[: len(paths) - sizes[name]] for name, paths in classes.items()}
    return train, {name: paths[len(paths) - sizes[name] :] for name, paths in classes.items()}
