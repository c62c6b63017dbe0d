"""The runs that the options of `kcl run` describe: seeds, a grid of settings, and choices of some benchmarks."""

from __future__ import annotations

import argparse
import hashlib
import itertools
from pathlib import Path
from typing import Any

from kcl.benchmarks.registry import find_benchmark
from kcl.benchmarks.ways import DEFAULT_WAYS, parse_ways, show_ways
from kcl.cli.options import check_range, split_assignment
from kcl.core.randomness import LARGEST_SEED
from kcl.core.results import MOST_TASKS
from kcl.core.settings import Settings
from kcl.errors import KclError
from kcl.experiments.run_spec import CHOICES, RunSpec
from kcl.methods.recipes import check_setting, find_method
from kcl.methods.strong_recipe import recipe_settings

MANY = 10_000
LONGEST_NAME = 150
"""Characters of a folder's name: most file systems take 255 bytes."""


def specs(options: argparse.Namespace) -> list[RunSpec]:
    """The requested runs. Mistakes in the options raise a `KclError`."""
    benchmark = find_benchmark(options.benchmark)
    find_method(options.method)
    check_range(options, "tasks", 1, MOST_TASKS)
    if options.out is not None and not str(options.out).strip("."):
        raise KclError("--out must name a folder other than the current one")
    same = ("benchmark", "method", "tasks", "train_per_task", "class_order", "image_size")
    fields: dict[str, Any] = {name: getattr(options, name) for name in same}
    fields["ways"] = None if options.ways is None else parse_ways(options.ways)
    seeds = whole_numbers(options.seeds, "--seeds")
    runs = [RunSpec(seed=seed, settings=settings, **fields) for settings in _grid(options) for seed in seeds]
    benchmark.check_choices(options.benchmark, [name for name in CHOICES if getattr(runs[0], name) is not None])
    return runs


def whole_numbers(text: str, option: str) -> list[int]:
    """'0,1,2', '0..4' or a mixture of both."""
    seeds: list[int] = []
    for part in text.split(","):
        first, dots, last = part.strip().partition("..")
        if not (first.isdecimal() and (not dots or last.isdecimal())):
            raise KclError(f"{option} {text!r}: expected whole numbers such as 0,1,2 or a range such as 0..4")
        span = range(int(first), int(last if dots else first) + 1)
        if span and span[-1] > LARGEST_SEED:
            raise KclError(f"{option} {text!r}: no number may be larger than 2⁶³ − 1")
        if len(seeds) + len(span) > MANY:
            raise KclError(f"{option} {text!r}: more seeds than one command takes ({MANY})")
        seeds += span
    if not seeds or len(set(seeds)) != len(seeds):
        raise KclError(f"{option} {text!r}: expected at least one number, each once, ranges upwards")
    return seeds


def default_out(options: argparse.Namespace) -> Path:
    """A folder for runs that differ in their seeds only, named by what was chosen."""
    choices = {name: getattr(options, name) for name in ("tasks", "train_per_task", *CHOICES)}
    choices = {name: value for name, value in choices.items() if value is not None} | _assignments(options)
    recipe = [] if options.recipe == "paper" else [options.recipe]
    changes = sorted(f"{name}={value}" for name, value in choices.items())
    name = "-".join([options.benchmark, options.method, *recipe, *changes]).replace("/", "_")
    if len(name) > LONGEST_NAME:
        name = f"{name[:LONGEST_NAME]}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"
    return Path("runs") / name


def shown(runs: list[RunSpec]) -> dict[str, str]:
    """What decides these runs; several values of a setting if they form a grid."""
    spec, benchmark = runs[0], find_benchmark(runs[0].benchmark)
    ways = spec.ways or DEFAULT_WAYS
    tasks = spec.tasks or (benchmark.tasks if ways == DEFAULT_WAYS else None)
    stream_choices = {"ways": show_ways(ways), "class_order": spec.class_order or "fixed"}
    lines = {"tasks": str(tasks or "as many as the classes make")}
    lines |= {name: stream_choices[name] for name in benchmark.stream_choices}
    lines |= {name: str(getattr(spec, name) or default) for name, default in benchmark.load_choices.items()}
    for name, value in spec.settings.to_dict().items():
        values = dict.fromkeys([str(value), *(str(getattr(other.settings, name)) for other in runs)])
        lines[name] = f"{','.join(values)}  ({spec.settings.field(name).metadata['help']})"
    return lines


def _assignments(options: argparse.Namespace) -> dict[str, str]:
    """The settings that the options change, each with its values, separated by commas."""
    assignments = list(options.assignments)
    if options.kernel is not None:
        assignments.append(f"kernel={options.kernel}")
    if options.scenario is not None:
        assignments.append(f"scenario={options.scenario}")
    if options.memory_per_class is not None:
        setting = find_method(options.method).memory_setting
        if setting is None:
            raise KclError(f"--memory-per-class: {options.method} has no memory of samples whose size could be chosen")
        assignments.append(f"{setting}={options.memory_per_class}")
    texts: dict[str, str] = {}
    for name, text in map(split_assignment, assignments):
        if name in texts:
            raise KclError(f"setting {name} is given twice")
        texts[name] = text
    return texts


def _grid(options: argparse.Namespace) -> list[Settings]:
    """The recipe's settings with the user's changes; comma-separated values are tried in every combination."""
    settings_type, choices = find_method(options.method).settings_type, dict[str, list[object]]()
    for name, text in _assignments(options).items():
        check_setting(options.method, name)
        choices[name] = [settings_type.parse(name, value) for value in text.split(",")]
        if len(set(choices[name])) != len(choices[name]):
            raise KclError(f"--set {name}={text}: a value is given twice")
    base = recipe_settings(options.recipe, options.benchmark, options.method)
    return [base.replace(**dict(zip(choices, values, strict=True))) for values in itertools.product(*choices.values())]
