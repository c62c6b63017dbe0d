"""The tables and figures by name, the runs that they need, about how long these take, and the report that they give.

A new table or figure is a class in a file of its own, or beside its kind, and one line of `ITEMS` or `STRONG`.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from kcl.core.files import write_whole
from kcl.core.settings import nearest
from kcl.errors import KclError
from kcl.experiments.run_spec import RunSpec, by_training
from kcl.experiments.speeds import speed_of
from kcl.paper import class_incremental, equal_memory, paper_items, strong_parts, strong_results
from kcl.paper.cell import FinishedRuns, Scale, run_compute
from kcl.paper.inference_time import InferenceTime
from kcl.paper.item import Item
from kcl.report.published import BENCHMARK_TITLES


def _by_name(*items: Item) -> dict[str, Item]:
    return {item.name: item for item in items}


ITEMS = _by_name(
    paper_items.FirstTasks(),
    paper_items.Kernels(),
    paper_items.VariedWays(),
    paper_items.NumberOfTasks(),
    paper_items.MemoryBenefit(),
    paper_items.CoresetSize(),
    paper_items.Bases(),
    InferenceTime(),
    paper_items.AllMethods(),
    paper_items.Comparison(),
    paper_items.Hyperparameters(),
)
STRONG = _by_name(
    strong_results.StrongResults(),
    strong_parts.StrongHorizon(),
    strong_parts.Ablation(),
    strong_results.StrongCost(),
    equal_memory.EqualMemory(),
    equal_memory.ShuffledClasses(),
)
"""Beyond the paper, in the order in which their runs are done: the most important first."""
WITHOUT_TASK = _by_name(class_incremental.ClassIncremental(), class_incremental.ClassIncrementalSmall())
"""Beyond the paper, with no task named."""
BEYOND = STRONG | WITHOUT_TASK
GROUPS = {"all": ITEMS, "strong": STRONG}
"""Names for several items: `all` is the paper's, and no more."""


def find_items(names: list[str]) -> list[Item]:
    """The named items, each once; `all` stands for the paper's, `strong` for those of the strong recipe."""
    known = ITEMS | BEYOND
    if not names:
        beyond = ", ".join(["strong", *WITHOUT_TASK])
        raise KclError(f"name what to reproduce: all, or some of {', '.join(ITEMS)}; or, beyond the paper, {beyond}")
    for name in names:
        if name not in known and name not in GROUPS:
            raise KclError(f"unknown table or figure {name!r}; {nearest(name, [*GROUPS, *known])}")
    return [known[key] for key in dict.fromkeys(key for name in names for key in GROUPS.get(name, {name: None}))]


def required_runs(items: Sequence[Item], scale: Scale, seeds: Sequence[int]) -> list[RunSpec]:
    """All runs, each once: tables and figures share many."""
    specs = [spec for item in items for spec in item.specs(scale, seeds)]
    return list({spec.key: spec for spec in specs}.values())


class Estimate(NamedTuple):
    """On one H200; None for benchmarks whose speed was not measured."""

    groups: int
    runs: int
    minutes: float | None
    gigabytes: float | None


def estimate(specs: Sequence[RunSpec], workers: int = 1) -> Estimate:
    """Time and memory, with five runs trained together where possible.

    The time of a step, measured with the paper's settings, is scaled by the images that pass the backbone: rotation
    labels, coresets, replayed samples. Tests are not counted. A training that several runs share is counted once.

    Workers share one GPU, which computes their steps no faster; while one is set up, the others use it.
    """
    groups: dict[Any, list[RunSpec]] = {}
    for spec in specs:
        seed = spec.seed if isinstance(spec.ways, tuple) else None  # varied ways: shapes differ between seeds
        key = (spec.benchmark, spec.method, spec.ways, seed, spec.settings.stacking_key())
        groups.setdefault(key, []).append(spec)
    if any(spec.benchmark not in BENCHMARK_TITLES for spec in specs):
        return Estimate(len(groups), len(specs), None, None)
    steps = set_up = gigabytes = 0.0
    for group in groups.values():
        speed, compute = speed_of(group[0].settings.backbone), run_compute(group[0])
        steps += speed.training(compute.updates, compute.images_per_update, len(by_training(group)))
        set_up += speed.set_up
        gigabytes = max(gigabytes, speed.memory(compute.images_per_update))
    return Estimate(len(groups), len(specs), (steps + set_up / workers) / 60.0, gigabytes * workers)


def write_report(items: Sequence[Item], runs: FinishedRuns, out: Path) -> Path:
    """Write every table and figure, and an index of them."""
    in_paper = all(item.in_paper for item in items)
    lines = ["# The paper's tables and figures" if in_paper else "# Tables and figures beyond the paper", ""]
    lines += [runs.scale.note, ""] if runs.miniature else []
    for item in items:
        specs = item.specs(runs.scale, runs.seeds)
        finished = sum(runs.find(spec) is not None for spec in specs)
        progress = f"{finished} of {len(specs)} runs" if specs else "no runs needed"
        links = ", ".join(f"[{path.name}]({item.name}/{path.name})" for path in item.write(runs, out))
        lines.append(f"- **{item.title}** ({item.place}; {progress}): {links}")
    write_whole(out / "index.md", ("\n".join(lines) + "\n").encode())
    return out / "index.md"
