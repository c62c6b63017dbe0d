"""`kcl data`: where the datasets are, how to get them, and whether they are intact. `kcl features` of a user's data."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from kcl.cli.commands import say
from kcl.cli.options import add_device, use_device
from kcl.errors import KclError

if TYPE_CHECKING:
    from kcl.data.source import DataSource


def add(data: argparse.ArgumentParser) -> None:
    commands = data.add_subparsers(required=True, metavar="WHAT")

    def add_command(name: str, function: Callable[[argparse.Namespace], int], text: str) -> argparse.ArgumentParser:
        command = commands.add_parser(name, help=text)
        command.set_defaults(function=function)
        return command

    add_command("list", _list, "every dataset: where it is, its size, its licence, how to get it")
    fetch = add_command("fetch", _fetch, "download into the cache and verify")
    verify = add_command("verify", _verify, "check every file")
    prepare = add_command("prepare", _prepare, "decode images into one file, for a machine without Pillow")
    add_command("clear", _clear, "remove decoded images and features from the cache; they can be made again")
    for command in (fetch, verify, prepare):
        command.add_argument("name", metavar="NAME", help="a dataset, see `kcl data list`")
    for command in (verify, prepare):
        command.add_argument("--data-dir", type=Path, metavar="DIR", help="use this folder instead of the default one")
    prepare.add_argument("--out", type=Path, metavar="DIR", help="write it below DIR, which then serves as --data-dir")


def add_features(command: argparse.ArgumentParser) -> None:
    command.add_argument("data", type=Path, metavar="PATH", help="a folder of images by class, or an .npz file")
    command.add_argument("--backbone", type=Path, required=True, metavar="FILE", help="the network, an ONNX file")
    command.add_argument("--out", type=Path, required=True, metavar="FILE", help="an .npz file for `kcl update`")
    command.add_argument("--unlabelled", action="store_true", help="the images have no classes: for `kcl predict`")
    images = command.add_argument_group("what the network expects of images")
    images.add_argument("--size", type=int, metavar="PIXELS", help="side length of the square images it takes")
    images.add_argument("--mean", type=float, nargs="+", metavar="M", help="mean of each channel, for pixels in 0 … 1")
    images.add_argument(
        "--std", type=float, nargs="+", metavar="S", help="standard deviation of each channel, for pixels in 0 … 1"
    )
    images.add_argument(
        "--crop",
        type=float,
        default=1.0,
        metavar="SHARE",
        help="share of the side that is kept, in the middle (default: 1)",
    )
    images.add_argument(
        "--filter", default="bicubic", metavar="NAME", help="how images are resized: bicubic (default) or bilinear"
    )
    command.add_argument("--batch", type=int, default=64, metavar="N", help="inputs computed at once (default: 64)")
    command.add_argument(
        "--no-cache", action="store_true", help="compute everything anew, and store nothing in the cache"
    )
    add_device(command)
    command.set_defaults(function=_features)


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
