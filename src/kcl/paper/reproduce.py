"""Everything that some tables and figures need: which runs, about how long they take, and what they give."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from kcl.core.files import write_whole
from kcl.experiments.run_spec import RunSpec, by_training
from kcl.experiments.speeds import TOGETHER, speed_of
from kcl.paper.cell import CIFAR100, MINIIMAGENET, PERMUTED, ROTATED, Scale
from kcl.paper.item import Found, Item
from kcl.paper.stream_sizes import compute


def needed(items: Sequence[Item], scale: Scale, seeds: Sequence[int]) -> list[RunSpec]:
    """All runs, each once: tables and figures share many."""
    specs = [spec for item in items for spec in item.specs(scale, seeds)]
    return list({spec.key: spec for spec in specs}.values())


HEADING, PAST = "The paper's tables and figures", "Tables and figures, past the paper"

MEASURED = (PERMUTED, ROTATED, CIFAR100, MINIIMAGENET)
"""Benchmarks of whose steps the speed is known."""


class Estimate(NamedTuple):
    groups: int
    runs: int
    minutes: float | None
    """On one H200; None where a benchmark's speed is not known."""
    gigabytes: float | None


def estimate(specs: Sequence[RunSpec], workers: int = 1) -> Estimate:
    """Runs that can be trained together are taken five at a time. What was measured of a step with the paper's settings
    is scaled to the images that pass the backbone: rotation labels, coresets, recalled samples. Tests are not counted,
    and a training that several runs share is counted once.

    Workers share one GPU, which does their steps no faster; while one is set up, the others use it.
    """
    groups: dict[Any, list[RunSpec]] = {}
    for spec in specs:
        own = spec.seed if isinstance(spec.ways, tuple) else None  # varied ways: every seed has its own shapes
        shared = (spec.benchmark, spec.method, spec.ways, own, spec.settings.stacking_key())
        groups.setdefault(shared, []).append(spec)
    if any(spec.benchmark not in MEASURED for spec in specs):
        return Estimate(len(groups), len(specs), None, None)
    steps = set_up = gigabytes = 0.0
    for group in groups.values():
        first = group[0]
        speed, work = speed_of(first.settings.backbone), compute(first)
        trainings = len(by_training(group))
        steps += work.updates * speed.step(work.images_per_update) / 1e3 * -(-trainings // TOGETHER)
        set_up += speed.set_up
        gigabytes = max(gigabytes, speed.memory(work.images_per_update))
    return Estimate(len(groups), len(specs), (steps + set_up / workers) / 60.0, gigabytes * workers)


def write(
    items: Sequence[Item],
    records: Sequence[Mapping[str, Any]],
    scale: Scale,
    seeds: Sequence[int],
    out: Path,
    measured: Sequence[Path] = (),
) -> Path:
    """Every table and figure that the finished runs and what was measured give, and a page that lists them."""
    found = Found(records, scale, seeds, measured or [out])
    lines = [f"# {HEADING if all(item.judged for item in items) else PAST}", ""]
    lines += [scale.note, ""] if scale.note else []
    for item in items:
        written = item.write(found, out)
        done, all_runs = _progress(item, found)
        finished = f"{done} of {all_runs} runs" if all_runs else "no runs needed"
        links = ", ".join(f"[{path.name}]({item.name}/{path.name})" for path in written)
        lines.append(f"- **{item.title}** ({item.place}; {finished}): {links}")
    write_whole(out / "index.md", ("\n".join(lines) + "\n").encode())
    return out / "index.md"


def _progress(item: Item, found: Found) -> tuple[int, int]:
    specs = item.specs(found.scale, found.seeds)
    return sum(found.run(spec) is not None for spec in specs), len(specs)
