"""The time of a prediction on Split CIFAR-100, against the coreset size and against the number of random bases.

Nothing is trained: a backbone of the published shape with random weights takes the same time. The measurements on a
device are kept in a file of their own beside the results of the runs.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from kcl.bench.answer_time import QUERIES, SECONDS, SETTINGS, paper_tables
from kcl.bench.step_time import WORKS, Work
from kcl.core.devices import describe_machine
from kcl.core.files import read_json, write_json
from kcl.data.file_cache import Say
from kcl.errors import KclError
from kcl.methods.recipes import published_settings
from kcl.ops.precision import at_test, products
from kcl.paper.cell import FinishedRuns, Scale
from kcl.paper.item import Item
from kcl.report import figures
from kcl.report.figures import Curve, Panel
from kcl.report.formatting import MISSING, markdown_table

if TYPE_CHECKING:
    from matplotlib.axes import Axes

FORMAT = 1
DEVICES = ("cpu", "cuda")
WAYS = ("plain", "uncollapsed", "collapsed", "backbone")
AXES = {"coreset": "coreset samples per class", "bases": "random Fourier features D"}
PRINTED = {
    "coreset": {5: 0.0017, 10: 0.0017, 20: 0.0017, 40: 0.0018},
    "bases": {256: 0.0014, 512: 0.0015, 1024: 0.0015, 2048: 0.0017},
}
"""Seconds, as printed."""
RELATIVE = "relative to the first"


class InferenceTime(Item):
    name = "inference-time"
    place = "Tables 3 and 4"
    title = "Inference time"
    note = (
        "The paper does not say on what machine it measured, nor how many queries. Times on different machines cannot "
        "be compared, but their growth can: every row is also given relative to its first column. `plain` is the "
        "straightforward implementation (`kcl.bench.reference_loop`: the coreset through the backbone, ω drawn, "
        "K + λI inverted, in every call), `uncollapsed` this library's classifier solved again in every call, "
        "`collapsed` the library's prediction, with a head solved once, `backbone` the backbone alone. Medians; "
        "weights and samples are random, which costs the same."
    )

    def measure(self, path: Path, device: str, precision: str, scale: Scale, command: str, say: Say) -> None:
        """Measure both tables on one device, and keep them in one file."""
        work, queries, seconds = _workload(scale)
        rows = []
        with products(at_test(precision)):
            for row in paper_tables(self.name, work, queries, device, seconds):
                rows.append({name: value for name, value in asdict(row).items() if name != "work"})
                say(f"{row.table} {row.value}, {row.queries} queries, {row.way}: {row.ms:.3f} ms")
        content = {
            "format": FORMAT,
            "miniature": bool(scale.note),
            "command": command,
            **describe_machine(device),
            "threads": torch.get_num_threads(),
            "precision": precision if device == "cuda" else "float32",
            "rows": rows,
        }
        write_json(path, content)

    def rows(self, runs: FinishedRuns) -> list[dict[str, Any]]:
        paper = {"device": "the paper's", "queries": None, "way": "published"}
        rows: list[dict[str, Any]] = [
            {"table": table, "value": value, **paper, "seconds": seconds}
            for table, printed in PRINTED.items()
            for value, seconds in printed.items()
        ]
        for content in _measurements(runs):
            for row in content["rows"]:
                place = {"table": row["table"], "value": row["value"], "device": content["device"]}
                rows.append(place | {"queries": row["queries"], "way": row["way"], "seconds": row["ms"] / 1e3})
        first = {_line(row): row["seconds"] for row in reversed(rows)}
        return [row | {RELATIVE: row["seconds"] / first[_line(row)]} for row in rows]

    def markdown(self, runs: FinishedRuns) -> str:
        lines: dict[tuple[Any, ...], dict[int, dict[str, Any]]] = {}
        for row in self.rows(runs):
            lines.setdefault(_line(row), {})[row["value"]] = row
        parts = []
        for table, printed in PRINTED.items():
            texts = []
            for line, measured in lines.items():
                if line[0] == table:
                    points = [measured.get(value) for value in printed]
                    times = [_milliseconds(point) if point else MISSING for point in points]
                    growth = [f"{point[RELATIVE]:.2f}" if point else MISSING for point in points]
                    texts.append([_label(line), *times, *growth])
            header = (AXES[table], *map(str, printed), *(f"{value}, relative" for value in printed))
            parts.append(f"## Against the {AXES[table]}, milliseconds\n\n{markdown_table(header, texts)}\n")
        parts += [
            f"Measured on {content['device']}, {content['threads']} thread(s), {content['precision']}, PyTorch "
            f"{content['versions']['torch']}: `{content['command']}`\n"
            for content in _measurements(runs)
        ] or ["Nothing was measured yet.\n"]
        return "\n".join(parts)

    def panels(self, runs: FinishedRuns) -> list[Panel]:
        """Growth relative to the smallest value, one query at a time: the paper's, and ours on each device."""
        rows = [row for row in self.rows(runs) if row["queries"] in (None, 1)]
        devices = list(dict.fromkeys(row["device"] for row in rows if row["queries"])) or ["not measured yet"]
        panels: list[Panel] = []
        for device in devices:
            for table, label in AXES.items():
                points = [row for row in rows if row["device"] in (device, "the paper's") and row["table"] == table]
                panels.append((device, partial(_growth, rows=points, xlabel=label)))
        return panels


def file_of(folder: Path, device: str) -> Path:
    return folder / f"inference-time-{device}.json"


def _workload(scale: Scale) -> tuple[Work, tuple[int, ...], float]:
    """What is measured: CIFAR-100's ResNet, or a miniature's MLP."""
    if not scale.note:
        return WORKS["cifar100"], QUERIES["cifar100"], SECONDS
    settings = published_settings("split-digits", "kcl")
    return Work((1, 8, 8), 2, 0, settings), (1, 50), SECONDS / 100


def _measurements(runs: FinishedRuns) -> Iterator[Mapping[str, Any]]:
    """What was measured at this scale, device by device."""
    for path in (file_of(folder, device) for folder in runs.folders for device in DEVICES):
        if path.exists():
            content = read_json(path)
            if not _is_valid(content):
                advice = "move it away and measure again"
                raise KclError(f"{path} does not hold times that this version of kcl measured; {advice}")
            if content["miniature"] == runs.miniature:
                yield content


def _is_valid(content: Any) -> bool:
    try:
        texts = [content["command"], content["device"], content["precision"], content["versions"]["torch"]]
        times = [
            row["table"] in SETTINGS and row["way"] in WAYS and min(row["value"], row["queries"], row["ms"]) > 0
            for row in content["rows"]
        ]
        about = content["format"] == FORMAT and type(content["threads"]) is int and "miniature" in content
        return about and all(text.isprintable() and len(text) <= 1000 for text in texts) and all(times)
    except (AttributeError, KeyError, TypeError):
        return False


def _line(row: Mapping[str, Any]) -> tuple[Any, ...]:
    """The line of a table that a number belongs to."""
    return row["table"], row["device"], row["queries"], row["way"]


def _label(line: tuple[Any, ...]) -> str:
    _, device, queries, way = line
    if queries is None:
        return "the paper"
    return f"{'one query' if queries == 1 else f'{queries} queries'}, {way}, {device}"


def _milliseconds(row: Mapping[str, Any]) -> str:
    """The paper's as printed, ours with three significant digits."""
    value = 1e3 * row["seconds"]
    digits = 1 if row["queries"] is None else max(0, 2 - math.floor(math.log10(value)))
    return f"{value:.{digits}f}"


def _growth(axes: Axes, rows: list[dict[str, Any]], xlabel: str) -> None:
    for index, way in enumerate(("published", *WAYS)):
        line = [row for row in rows if row["way"] == way]
        if line:
            mean = np.array([row[RELATIVE] for row in line])
            figures.draw_curve(axes, np.array([row["value"] for row in line]), Curve(mean, 0.0 * mean), index, way)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log", base=2)
    for axis, values in ((axes.xaxis, sorted({row["value"] for row in rows})), (axes.yaxis, (1, 2, 4, 8))):
        axis.set_ticks(values, [str(value) for value in values])
    axes.minorticks_off()
    low, high = axes.get_ylim()
    axes.set(xlabel=xlabel, ylabel="time, relative to the smallest", ylim=(min(low, 0.9), max(high, 2.2)))
