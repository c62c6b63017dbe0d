"""`kcl list`: the names that other commands take."""

from __future__ import annotations

import argparse

from kcl.cli.run_commands import print_lines

LISTS = ("backbones", "benchmarks", "kernels", "methods", "recipes", "settings")


def add(command: argparse.ArgumentParser) -> None:
    command.add_argument("what", choices=LISTS)
    command.set_defaults(function=_list)


def _list(options: argparse.Namespace) -> int:
    from kcl.benchmarks.registry import BENCHMARKS
    from kcl.cli.run_options import setting_lines
    from kcl.core.settings import BACKBONES, Summaries
    from kcl.methods.recipes import METHODS
    from kcl.methods.ridge_kernels import KERNELS
    from kcl.methods.strong_recipe import RECIPES

    lists: dict[str, dict[str, str]] = {
        "backbones": BACKBONES,
        "benchmarks": {name: benchmark.description for name, benchmark in BENCHMARKS.items()},
        "kernels": dict(Summaries(KERNELS)),
        "methods": {name: f"{method.summary} (keeps: {method.keeps})" for name, method in METHODS.items()},
        "recipes": RECIPES,
        "settings": setting_lines(),
    }
    return print_lines(lists[options.what])
