"""`kcl data`: where the datasets are, how to get them, and whether they are intact."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from kcl.cli.commands import say
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
    add_command("clear", _clear, "remove decoded images from the cache; they can be made again")
    for command in (fetch, verify, prepare):
        command.add_argument("name", metavar="NAME")
    for command in (verify, prepare):
        command.add_argument("--data-dir", type=Path, metavar="DIR", help="use this folder instead of the default one")
    prepare.add_argument("--out", type=Path, metavar="DIR", help="write it below DIR, which then serves as --data-dir")


def _list(_: argparse.Namespace) -> int:
    from kcl.data import image_cache
    from kcl.data.datasets import DATASETS

    for name, dataset in DATASETS.items():
        print(f"{name}\n  where:   {dataset.where() or 'not found'}\n  size:    {dataset.size}")
        print(f"  licence: {dataset.licence}\n  to get:  {dataset.how_to_get}")
    try:
        folder, size = image_cache.usage()
    except KclError:  # without a cache folder there is nothing in it
        return 0
    print(f"decoded images\n  where:   {folder}\n  size:    {size / 1e6:.0f} MB\n  to free: kcl data clear")
    return 0


def _find(options: argparse.Namespace) -> DataSource:
    from kcl.data.datasets import find_dataset  # loads PyTorch

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
    from kcl.data import image_cache

    folder, size = image_cache.clear()
    print(f"removed {size / 1e6:.0f} MB from {folder}")
    return 0
