"""`kcl list`: the names that other commands take."""

from __future__ import annotations

import argparse

from kcl.cli.commands import print_lines

LISTS = ("backbones", "benchmarks", "kernels", "methods", "recipes", "settings")


def add(command: argparse.ArgumentParser) -> None:
    command.add_argument("what", choices=LISTS)
    command.set_defaults(function=_list)


def _list(options: argparse.Namespace) -> int:
    from kcl.benchmarks.registry import BENCHMARKS
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
        "settings": _setting_lines(),
    }
    return print_lines(lists[options.what])


def _setting_lines() -> dict[str, str]:
    """Meaning, range and default of every setting, below the methods that have it; those of every method first."""
    from kcl.methods.recipes import METHODS, methods_with

    sections: dict[str, dict[str, str]] = {}
    for method in METHODS.values():
        settings_type = method.settings_type
        for name in settings_type.names():
            field, methods = settings_type.field(name), methods_with(name)
            heading = "every method:" if len(methods) == len(METHODS) else f"{', '.join(methods)}:"
            text = f"{field.metadata['help']} ({settings_type.describe_range(name)}; default {field.default})"
            sections.setdefault(heading, {})[f"  {name}"] = text
    return {name: text for heading, lines in sections.items() for name, text in {heading: "", **lines}.items()}
