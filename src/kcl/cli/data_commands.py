"""`kcl data`: where the datasets are, how to get them, whether they are whole."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path

from kcl.data import datasets, image_cache
from kcl.errors import KclError


def add_commands(data: argparse.ArgumentParser) -> None:
    commands = data.add_subparsers(required=True, metavar="WHAT")

    def add(name: str, function: Callable[[argparse.Namespace], int], text: str) -> argparse.ArgumentParser:
        command = commands.add_parser(name, help=text)
        command.set_defaults(function=function)
        return command

    add("list", _list, "every dataset: where it is, its size, its licence, how to get it")
    fetch = add("fetch", _fetch, "download into the cache, verified")
    verify = add("verify", _verify, "check every file")
    prepare = add("prepare", _prepare, "decode images into one file, for a machine without Pillow")
    add("clear", _clear, "remove decoded images from the cache; they can be made again")
    for command in (fetch, verify, prepare):
        command.add_argument("name", metavar="NAME")
    for command in (verify, prepare):
        command.add_argument("--data-dir", type=Path, help="take this folder instead of the one that would be used")
    prepare.add_argument("--out", type=Path, metavar="DIR", help="write it below DIR, which then serves as --data-dir")


def _list(_: argparse.Namespace) -> int:
    for row in datasets.describe():
        print(f"{row.name}\n  where:   {row.where}\n  size:    {row.size}")
        print(f"  licence: {row.licence}\n  to get:  {row.how_to_get}")
    try:
        folder, size = image_cache.usage()
    except KclError:  # no cache folder is known, so nothing can be in it
        return 0
    print(f"decoded images\n  where:   {folder}\n  size:    {size / 1e6:.0f} MB\n  to free: kcl data clear")
    return 0


def _fetch(options: argparse.Namespace) -> int:
    print(datasets.fetch(options.name, _say))
    return 0


def _verify(options: argparse.Namespace) -> int:
    print(f"verified: {datasets.verify(options.name, options.data_dir)}")
    return 0


def _prepare(options: argparse.Namespace) -> int:
    print(datasets.prepare(options.name, options.data_dir, options.out, _say))
    return 0


def _clear(_: argparse.Namespace) -> int:
    folder, size = image_cache.clear()
    print(f"removed {size / 1e6:.0f} MB from {folder}")
    return 0


def _say(message: str) -> None:
    print(message, file=sys.stderr)
