"""What an answer costs on Split CIFAR-100, against the coreset's size and against the number of random bases.

Nothing is trained: a backbone of the published shape with random weights takes the same time. The measurements of a
device are kept in one file of their own beside the results of the runs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

import kcl
from kcl.bench.answer_time import QUERIES, SECONDS, SETTINGS, paper_tables
from kcl.bench.step_time import WORKS, Work
from kcl.core.devices import device_name
from kcl.core.files import read_json, write_json
from kcl.errors import KclError
from kcl.methods.recipes import published_backbone, published_settings
from kcl.ops.precision import at_test, products
from kcl.paper.cell import Cell, Scale
from kcl.paper.item import Found, Item, Measuring
from kcl.paper.paper_figures import Panel, panels
from kcl.report import figures
from kcl.report.curves import Curve

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FORMAT = 1
DEVICES = ("cpu", "cuda")
WAYS = ("plain", "uncollapsed", "collapsed", "backbone")
AXES = {"coreset": "coreset samples per class", "bases": "random Fourier features D"}
PAPER = {
    "coreset": {5: 0.0017, 10: 0.0017, 20: 0.0017, 40: 0.0018},
    "bases": {256: 0.0014, 512: 0.0015, 1024: 0.0015, 2048: 0.0017},
}
"""Seconds, as printed."""


class InferenceTime(Item):
    name = "inference-time"
    place = "Tables 3 and 4"
    title = "Inference time"
    note = (
        "The paper does not say on what machine it measured, nor how many queries. Times of different machines cannot "
        "be compared; how they grow can be, so that every row also stands relative to its first column. `plain` is the "
        "usual way (`kcl.bench.reference_loop`: the coreset through the backbone, ω drawn, K + λI inverted, for every "
        "call), `uncollapsed` this library's classifier solved anew for every call, `collapsed` the library's answer, "
        "whose head was solved once, `backbone` the backbone alone. Medians; weights and samples are random, which "
        "costs the same."
    )

    def cells(self) -> list[Cell]:
        return []

    def measure(self, asked: Measuring) -> None:
        """Both tables on one device, kept whole in one file."""
        path = file_of(asked.folder, asked.device)
        if path.exists():
            if not asked.resume:
                raise KclError(f"{path} is there already; add --resume to keep it, or choose another --out")
            asked.say(f"{path} is kept as it is")
            return
        work, queries, seconds = _shape(asked.scale)
        rows = []
        with products(at_test(asked.precision)):
            for row in paper_tables(self.name, work, queries, asked.device, seconds):
                rows.append({name: value for name, value in row.to_dict().items() if name != "work"})
                asked.say(f"{row.table} {row.value}, {row.queries} queries, {row.way}: {row.ms:.3f} ms")
        about = {
            "format": FORMAT,
            "miniature": bool(asked.scale.note),
            "command": asked.command,
            "device": device_name(torch.device(asked.device)),
            "threads": torch.get_num_threads(),
            "precision": asked.precision if asked.device == "cuda" else "float32",
            "versions": {"kcl": kcl.__version__, "torch": torch.__version__},
        }
        write_json(path, about | {"rows": rows})

    def rows(self, found: Found) -> list[dict[str, Any]]:
        made: list[dict[str, Any]] = [
            {"table": table, "value": value, "device": "the paper's", "queries": None, "way": "published", "seconds": s}
            for table, printed in PAPER.items()
            for value, s in printed.items()
        ]
        for about in _measured(found):
            made += [
                {name: row[name] for name in ("table", "value")}
                | {"device": about["device"], "queries": row["queries"], "way": row["way"], "seconds": row["ms"] / 1e3}
                for row in about["rows"]
            ]
        first = {_line(row): row["seconds"] for row in reversed(made)}
        return [row | {"relative to the first": row["seconds"] / first[_line(row)]} for row in made]

    def markdown(self, found: Found) -> str:
        rows, parts = self.rows(found), []
        for table, printed in PAPER.items():
            header = (AXES[table], *map(str, printed), *(f"{value}, relative" for value in printed))
            lines = [header, ("---", *["---:"] * (len(header) - 1))]
            own = [row for row in rows if row["table"] == table]
            for line in dict.fromkeys(map(_line, own)):
                cells = {row["value"]: row for row in own if _line(row) == line}
                times = [_shown(cells.get(value), _milliseconds) for value in printed]
                growth = [
                    _shown(cells.get(value), lambda row: f"{row['relative to the first']:.2f}") for value in printed
                ]
                lines.append((_label(line), *times, *growth))
            parts.append("\n".join([f"## Against the {AXES[table]}, milliseconds\n", *map(_joined, lines), ""]))
        parts += [
            f"Measured on {about['device']}, {about['threads']} thread(s), {about['precision']}, PyTorch "
            f"{about['versions']['torch']}: `{about['command']}`\n"
            for about in _measured(found)
        ] or ["Nothing was measured yet.\n"]
        return "\n".join(parts)

    def figure(self, found: Found) -> Figure:
        """Growth relative to the smallest value, one query at a time, the paper's beside each device's."""
        rows = [row for row in self.rows(found) if row["queries"] in (None, 1)]
        devices = list(dict.fromkeys(row["device"] for row in rows if row["queries"])) or [None]
        given: list[Panel] = []
        for device in devices:
            title = "not measured yet" if device is None else str(device)
            own = [row for row in rows if row["device"] in (device, "the paper's")]
            given += [(title, _growth([row for row in own if row["table"] == table], AXES[table])) for table in PAPER]
        return panels(given, found)


def file_of(folder: Path, device: str) -> Path:
    return folder / f"inference-time-{device}.json"


def _shape(scale: Scale) -> tuple[Work, tuple[int, ...], float]:
    """What is measured: CIFAR-100's ResNet, or for a miniature what stands in for it."""
    if not scale.note:
        return WORKS["cifar100"], QUERIES["cifar100"], SECONDS
    settings = published_settings("split-digits", "kcl")
    small = Work((1, 8, 8), 2, 0, settings, lambda: published_backbone((1, 8, 8), settings))
    return small, (1, 50), SECONDS / 100


def _measured(found: Found) -> Iterator[Mapping[str, Any]]:
    """What was measured at the scale asked for, device by device."""
    for path in (file_of(folder, device) for folder in found.folders for device in DEVICES):
        if path.exists() and (about := _read(path))["miniature"] == bool(found.scale.note):
            yield about


def _read(path: Path) -> dict[str, Any]:
    about = read_json(path)
    if not isinstance(about, dict) or about.get("format") != FORMAT:
        raise KclError(f"{path} is not one that this version of kcl wrote; move it away and measure again")
    versions = about.get("versions")
    texts = [about.get(name) for name in ("command", "device", "precision")]
    texts.append(versions.get("torch") if isinstance(versions, dict) else None)
    whole = all(isinstance(text, str) and text.isprintable() and len(text) <= 1000 for text in texts)
    whole = whole and type(about.get("miniature")) is bool and type(about.get("threads")) is int
    rows = about.get("rows")
    if not whole or not isinstance(rows, list) or not all(map(_sound, rows)):
        raise KclError(f"{path} holds something other than measured times; move it away and measure again")
    return about


def _sound(row: Any) -> bool:
    if not isinstance(row, dict) or row.get("table") not in SETTINGS or row.get("way") not in WAYS:
        return False
    whole = all(type(row.get(name)) is int and row[name] > 0 for name in ("value", "queries"))
    return whole and type(row.get("ms")) is float and math.isfinite(row["ms"]) and row["ms"] > 0


def _line(row: Mapping[str, Any]) -> tuple[Any, ...]:
    """Which line of its table a number stands in."""
    return row["table"], row["device"], row["queries"], row["way"]


def _label(line: tuple[Any, ...]) -> str:
    _, device, queries, way = line
    if queries is None:
        return "the paper"
    return f"{'one query' if queries == 1 else f'{queries} queries'}, {way}, {device}"


def _shown(row: dict[str, Any] | None, text: Callable[[dict[str, Any]], str]) -> str:
    return "–" if row is None else text(row)


def _milliseconds(row: Mapping[str, Any]) -> str:
    """The paper's as printed, ours with three digits that count."""
    value = 1e3 * row["seconds"]
    digits = 1 if row["queries"] is None else max(0, 2 - math.floor(math.log10(value)))
    return f"{value:.{digits}f}"


def _joined(line: tuple[str, ...]) -> str:
    return f"| {' | '.join(line)} |"


def _growth(rows: list[dict[str, Any]], axis: str) -> Callable[[Axes], None]:
    def draw(axes: Axes) -> None:
        for index, way in enumerate(("published", *WAYS)):
            own = [row for row in rows if row["way"] == way]
            if own:
                mean = np.array([row["relative to the first"] for row in own])
                figures.draw(axes, np.array([row["value"] for row in own]), Curve(mean, 0.0 * mean), index, way)
        axes.set_xscale("log", base=2)
        axes.set_yscale("log", base=2)
        for axis_of, values in ((axes.xaxis, sorted({row["value"] for row in rows})), (axes.yaxis, (1, 2, 4, 8))):
            axis_of.set_ticks(values, [str(value) for value in values])
        axes.minorticks_off()
        low, high = axes.get_ylim()
        axes.set(xlabel=axis, ylabel="time, relative to the smallest", ylim=(min(low, 0.9), max(high, 2.2)))

    return draw
