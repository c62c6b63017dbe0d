"""`kcl list`: the names that other commands take."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from kcl.cli.commands import print_lines
from kcl.cli.options import option

if TYPE_CHECKING:
    from kcl.core.settings import CheckedSettings

LISTS = ("backbones", "benchmarks", "features", "kernels", "methods", "recipes", "settings", "streaming-settings")


def add(command: argparse.ArgumentParser) -> None:
    option(command, "what WHAT", f"one of {', '.join(LISTS)}", choices=LISTS)
    command.set_defaults(function=_list)


def _list(options: argparse.Namespace) -> int:
    from kcl.benchmarks.registry import BENCHMARKS
    from kcl.core.settings import BACKBONES
    from kcl.methods.feature_maps import FEATURE_MAPS
    from kcl.methods.recipes import METHODS
    from kcl.methods.ridge_kernels import KERNELS
    from kcl.methods.strong_recipe import RECIPES
    from kcl.models.streaming_heads import StreamingSettings

    lists: dict[str, dict[str, str]] = {
        "backbones": BACKBONES,
        "benchmarks": {name: benchmark.description for name, benchmark in BENCHMARKS.items()},
        "features": {name: each.summary for name, each in FEATURE_MAPS.items()},
        "kernels": {name: each.summary for name, each in KERNELS.items()},
        "methods": {name: f"{method.summary} (keeps: {method.keeps})" for name, method in METHODS.items()},
        "recipes": RECIPES,
        "settings": _setting_lines(),
        "streaming-settings": {name: _about(StreamingSettings, name) for name in StreamingSettings.names()},
    }
    return print_lines(lists[options.what])


def _setting_lines() -> dict[str, str]:
    """Meaning, range and default of every setting, below the methods that have it; those of every method first."""
    from kcl.methods.recipes import METHODS, methods_with

    sections: dict[str, dict[str, str]] = {}
    for method in METHODS.values():
        settings_type = method.settings_type
        for name in settings_type.names():
            methods = methods_with(name)
            heading = "every method:" if len(methods) == len(METHODS) else f"{', '.join(methods)}:"
            sections.setdefault(heading, {})[f"  {name}"] = _about(settings_type, name)
    return {name: text for heading, lines in sections.items() for name, text in {heading: "", **lines}.items()}


def _about(settings_type: type[CheckedSettings], name: str) -> str:
    field = settings_type.field(name)
    return f"{field.metadata['help']} ({settings_type.describe_range(name)}; default {field.default})"
