"""Decodes JPEG, PNG and WebP files: upright, in colour, cropped to a square of one size."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path

import numpy as np

from kcl.core.packages import load_package
from kcl.errors import KclError

SUFFIXES = (".jpg", ".jpeg", ".png", ".webp")
FORMATS = ("JPEG", "PNG", "WEBP")
BATCH = 256
LOOKED_AT = 100


def decode_all(paths: Sequence[Path], side: int, resampling: str = "bilinear") -> Iterator[np.ndarray]:
    """The images in order, in batches (k, 3, side, side); in threads, as Pillow releases the GIL while decoding."""
    Image = load_package("PIL.Image", "images", "reading image files needs Pillow")
    one = partial(decode, side=side, resampling=resampling)
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for start in range(0, len(paths), BATCH):
            with warnings.catch_warnings():
                # Pillow warns about suspiciously large images and refuses ones twice that size; refuse both.
                warnings.simplefilter("error", Image.DecompressionBombWarning)
                batch = list(pool.map(one, paths[start : start + BATCH]))
            yield np.stack(batch)


def usual_side(paths: Sequence[Path], smallest: int, largest: int) -> int:
    """The shorter side of most images, within bounds; of up to `LOOKED_AT` of them, whose first bytes tell."""
    Image = load_package("PIL.Image", "images", "reading image files needs Pillow")
    sides = []
    for path in paths[:: -(-len(paths) // LOOKED_AT)]:
        with suppress(Exception), Image.open(path, formats=FORMATS) as image:  # `decode` says what is wrong with it
            sides.append(min(image.size))
    return max(smallest, min(sorted(sides)[len(sides) // 2], largest)) if sides else largest


def decode(path: Path, side: int, resampling: str = "bilinear") -> np.ndarray:
    """One image as (3, side, side).

    It is rotated by its EXIF orientation, converted to RGB (grey becomes three equal channels, transparency is
    dropped), cropped to the largest centred square and resized. One that is side × side already is not resized.
    """
    from PIL import Image, ImageOps

    try:
        with Image.open(path, formats=FORMATS) as image:
            upright = ImageOps.exif_transpose(image)
            if upright.mode.startswith("I"):  # 16 bits of grey: the upper eight
                upright = Image.fromarray((np.asarray(upright).astype(np.uint32) >> 8).astype(np.uint8))
            # Through RGBA, because Pillow warns about palettes whose transparency would be lost.
            colour = (upright.convert("RGBA") if upright.mode == "P" else upright).convert("RGB")
    except (Image.DecompressionBombError, Image.DecompressionBombWarning):
        raise KclError(f"{path} has more than {Image.MAX_IMAGE_PIXELS} pixels; remove it or make it smaller") from None
    # Pillow reports a broken file in many ways: OSError, SyntaxError, ValueError, IndexError, struct.error …
    except Exception as error:
        raise KclError(f"{path} cannot be read as a JPEG, PNG or WebP image ({error}); remove or fix it") from None
    if colour.size != (side, side):
        colour = ImageOps.fit(colour, (side, side), Image.Resampling[resampling.upper()])
    return np.asarray(colour).transpose(2, 0, 1)
