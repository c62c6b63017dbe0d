"""`kcl data`: where the datasets are, how to get them, and whether they are intact. `kcl features` of a user's data."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from kcl.cli.commands import say
from kcl.cli.options import add_device, option, use_device
from kcl.errors import KclError

if TYPE_CHECKING:
    from kcl.data.source import DataSource


# fmt: off
def add(data: argparse.ArgumentParser) -> None:
    commands = data.add_subparsers(required=True, metavar="WHAT")
    parsers = {}
    for name, function, text in (
        ("list", _list, "every dataset: where it is, its size, its licence, how to get it"),
        ("fetch", _fetch, "download into the cache and verify"),
        ("verify", _verify, "check every file"),
        ("prepare", _prepare, "decode images into one file, for a machine without Pillow"),
        ("clear", _clear, "remove decoded images and features from the cache; they can be made again"),
    ):
        parsers[name] = commands.add_parser(name, help=text)
        parsers[name].set_defaults(function=function)
    for name in ("fetch", "verify", "prepare"):
        option(parsers[name], "name NAME", "a dataset, see `kcl data list`")
    for name in ("verify", "prepare"):
        option(parsers[name], "--data-dir DIR", "use this folder instead of the default one", type=Path)
    option(parsers["prepare"], "--out DIR", "write it below DIR, which then serves as --data-dir", type=Path)


def add_features(command: argparse.ArgumentParser) -> None:
    option(command, "data PATH", "a folder of images by class, or an .npz file", type=Path)
    option(command, "--backbone FILE", "the network, an ONNX file", type=Path, required=True)
    option(command, "--out FILE", "an .npz file for `kcl update`", type=Path, required=True)
    option(command, "--unlabelled", "the images have no classes: for `kcl predict`", action="store_true")
    images = command.add_argument_group("what the network expects of images")
    option(images, "--size PIXELS", "side length of the square images it takes", type=int)
    option(images, "--mean M", "mean of each channel, for pixels in 0 … 1", type=float, nargs="+")
    option(images, "--std S", "standard deviation of each channel, for pixels in 0 … 1", type=float, nargs="+")
    option(images, "--crop SHARE", "share of the side that is kept, in the middle (default: 1)", type=float,
           default=1.0)
    option(images, "--filter NAME", "how images are resized: bicubic (default) or bilinear", default="bicubic")
    option(command, "--batch N", "inputs computed at once (default: 64)", type=int, default=64)
    option(command, "--no-cache", "compute everything anew, and store nothing in the cache", action="store_true")
    add_device(command)
    command.set_defaults(function=_features)
# fmt: on


def _features(options: argparse.Namespace) -> int:
    from kcl.data import user_data
    from kcl.nets.frozen import FrozenFeatures

    if options.out.suffix != ".npz":
        raise KclError(f"--out {options.out}: expected a name that ends in .npz")
    use_device(options)
    features = FrozenFeatures(
        options.backbone, options.size, options.mean, options.std, options.crop, options.filter,
        batch=options.batch, device=options.device, cache=not options.no_cache,
    )  # fmt: skip
    samples = features.read(options.data, not options.unlabelled, say)
    user_data.write_arrays(options.out, samples)
    print(f"{options.out}: {len(samples.inputs)} rows of {samples.inputs.shape[1]} features")
    return 0


def _list(_: argparse.Namespace) -> int:
    from kcl.benchmarks.registry import DATASETS
    from kcl.data import file_cache

    for name, dataset in DATASETS.items():
        print(f"{name}\n  where:   {dataset.where() or 'not found'}\n  size:    {dataset.size}")
        print(f"  licence: {dataset.licence}\n  to get:  {dataset.how_to_get}")
    try:
        folder, size = file_cache.usage()
    except KclError:  # without a cache folder there is nothing in it
        return 0
    print(
        f"decoded images and features\n  where:   {folder}\n  size:    {size / 1e6:.0f} MB\n  to free: kcl data clear"
    )
    return 0


def _find(options: argparse.Namespace) -> DataSource:
    from kcl.benchmarks.registry import find_dataset  # loads PyTorch

    return find_dataset(options.name)


def _fetch(options: argparse.Namespace) -> int:
    print(_find(options).fetch(say))
    return 0


def _verify(options: argparse.Namespace) -> int:
    print(f"verified: {_find(options).verify(options.data_dir)}")
    return 0


def _prepare(options: argparse.Namespace) -> int:
    print(_find(options).prepare(options.data_dir, options.out, say))
    return 0


def _clear(_: argparse.Namespace) -> int:
    from kcl.data import file_cache

    folder, size = file_cache.clear()
    print(f"removed {size / 1e6:.0f} MB from {folder}")
    return 0
