"""The tensors of a saved model with a streaming head: one tensor of each kind, however many tasks there are.

`features.…` are those of the feature map. `rows` and `matrices` hold the second moments of the units one after the
other (a matrix as its upper triangle), `cross`, `sums`, `squares` and `counts` the rest of their statistics, `total`
the sum of all second moments, `known` the scores of known queries. Which unit has what is listed in `model.json`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from kcl.benchmarks.task import View
from kcl.functional.statistics import SecondMoment, Statistics
from kcl.methods.feature_maps import FEATURE_MAPS
from kcl.models.continual_model import ContinualModel
from kcl.models.features import Features
from kcl.models.lessons import Tasks
from kcl.models.streaming_heads import StreamingHeads, StreamingSettings
from kcl.models.streaming_ridge import WHOLE, Unit
from kcl.models.unknowns import KnownScores

_OF_KNOWN = ("score", "error_rate", "threshold", "stale")
AS_MATRIX = -1
"""In place of the number of rows: the second moment is kept as a matrix."""


def tensors_of(model: ContinualModel) -> dict[str, Tensor]:
    """All tensors of the model, by name."""
    head, known = _heads(model).ridge, _heads(model).known.values()
    units = list(head.units.values())
    dimension = head.features.dimension
    empty = torch.zeros(0, dimension, dtype=torch.float64)
    upper = torch.triu_indices(dimension, dimension)
    matrices = [unit.moment.matrix[upper[0], upper[1]] for unit in units if unit.moment.matrix is not None]
    tensors = {f"features.{name}": tensor for name, tensor in head.features.buffers.items()}
    tensors |= {
        "rows": torch.cat([empty, *(unit.moment.rows.cpu() for unit in units if unit.moment.rows is not None)]),
        "matrices": torch.stack(matrices) if matrices else torch.zeros(0, upper.shape[1], dtype=torch.float64),
        "cross": torch.cat([unit.cross for unit in units], dim=1),
        "sums": torch.cat([unit.sums for unit in units]),
        "squares": torch.cat([unit.squares for unit in units]),
        "counts": torch.tensor([unit.count for unit in units], dtype=torch.float64),
    }
    if known:
        tensors["known"] = torch.cat([each.scores for each in known])
    return tensors if head.moment is None else tensors | {"total": head.moment.tensor}


def about(model: ContinualModel) -> dict[str, Any]:
    """What `model.json` says of these heads."""
    heads = _heads(model)
    units = [
        [unit.task, unit.label, _rows(part.moment), part.targets, unit.held_out]
        for unit, part in heads.ridge.units.items()
    ]
    return {
        "settings": heads.settings.to_dict(),
        "features": heads.ridge.features.identity(),
        "units": units,
        "known": [
            {"task": task} | {name: getattr(known, name) for name in _OF_KNOWN} | {"queries": len(known.scores)}
            for task, known in heads.known.items()
        ],
        "total": None if heads.ridge.moment is None else _rows(heads.ridge.moment),
    }


def required(
    model: ContinualModel, about: Mapping[str, Any], _: Tasks, tensors: dict[str, Tensor]
) -> dict[str, Tensor]:
    """Tensors of the names, shapes and types that the file must have, of which nothing is allocated."""
    features = _features(about["features"], tensors, math.prod(model.input_shape or ()))
    dimension, units = features.dimension, about["units"]
    rows, width = [int(count) for _, _, count, *_ in units], sum(int(width) for *_, width, _ in units)
    sizes: dict[str, tuple[int, ...]] = {
        "rows": (sum(count for count in rows if count != AS_MATRIX), dimension),
        "matrices": (rows.count(AS_MATRIX), dimension * (dimension + 1) // 2),
        "cross": (dimension, width),
        "sums": (width,),
        "squares": (width,),
        "counts": (len(units),),
    }
    if about.get("known"):
        sizes["known"] = (sum(int(known["queries"]) for known in about["known"]),)
    if (total := about["total"]) is not None:
        sizes["total"] = (dimension if total == AS_MATRIX else int(total), dimension)
    of_features = {f"features.{name}": tensor for name, tensor in features.buffers.items()}
    return of_features | {n: torch.empty(size, dtype=torch.float64, device="meta") for n, size in sizes.items()}


def restore(
    model: ContinualModel, about: Mapping[str, Any], tasks: Tasks, tensors: dict[str, Tensor], view: View
) -> None:
    """Fill a model with the required tensors."""
    model.streaming = StreamingSettings().replace(**about["settings"])
    features = _features(about["features"], tensors, math.prod(model.input_shape or ()))
    heads = StreamingHeads(model.streaming, features, view, model.device)
    heads.tasks = tasks
    tensors = {name: tensor.to(heads.device) for name, tensor in tensors.items()}
    entries = [(Unit(str(task), int(label), bool(held)), int(rows), int(width))
               for task, label, rows, width, held in about["units"]]  # fmt: skip
    moments = _moments([rows for _, rows, _ in entries], tensors["rows"], tensors["matrices"])
    parts = [tensors[name].split([width for *_, width in entries], dim=-1) for name in ("cross", "sums", "squares")]
    units = {}
    for (unit, _, width), moment, cross, sums, squares, count in zip(
        entries, moments, *parts, tensors["counts"].tolist(), strict=True
    ):
        known = len(tasks[unit.task].labels)
        places = range(1, known + 1) if unit.label == WHOLE else range(1, 2)
        if width not in places or unit.label not in range(WHOLE, known) or not count > 0.0:
            raise ValueError("its statistics do not match its tasks")
        units[unit] = Statistics(moment, cross.contiguous(), sums.contiguous(), squares.contiguous(), count)
    total = tensors.get("total")
    kind = "matrix" if about["total"] == AS_MATRIX else "rows"
    heads.ridge.install(units, None if total is None else SecondMoment(**{kind: total}))
    heads.known = _known(tasks, about.get("known", []), tensors.get("known", torch.zeros(0)))
    model._heads = heads


def sizes(tensors: dict[str, Tensor]) -> dict[str, int]:
    """Of what the statistics consist."""
    names = ("rows", "matrices", "cross", "sums", "squares", "counts", "total")
    size = sum(tensors[name].nbytes for name in names if name in tensors)
    return {"units": len(tensors["counts"]), "statistics_bytes": size}


def _rows(moment: SecondMoment) -> int:
    return AS_MATRIX if moment.rows is None else len(moment.rows)


def _heads(model: ContinualModel) -> StreamingHeads:
    assert isinstance(model.heads, StreamingHeads)  # noqa: S101 - chosen by the model's head
    return model.heads


def _features(saved: Mapping[str, Any], tensors: dict[str, Tensor], inputs: int) -> Features:
    """The feature map, checked against the shapes that its kind requires."""
    identity = dict(saved)
    sha256, kind = identity.pop("sha256"), FEATURE_MAPS[identity["kind"]]
    StreamingSettings(bases=identity["bases"], width=identity["width"])  # in range
    if inputs != identity["inputs"]:
        raise ValueError("its features do not match its inputs")
    prefix = "features."
    buffers = {name.removeprefix(prefix): each for name, each in tensors.items() if name.startswith(prefix)}
    expected, features = kind.shapes(buffers, inputs, identity["bases"]), Features(**identity, buffers=buffers)
    if {name: tuple(tensor.shape) for name, tensor in buffers.items()} != expected:
        raise ValueError("the shapes of its features are not those of their kind")
    if features.identity()["sha256"] != sha256:
        raise ValueError("its features do not have the SHA-256 that it says")
    return features


def _known(tasks: Tasks, entries: list[dict[str, Any]], scores: Tensor) -> dict[str | None, KnownScores]:
    """The scores of known queries that decide which are not answered."""
    several, known = scores.split([int(entry["queries"]) for entry in entries]), {}
    for entry, of_entry in zip(entries, several, strict=True):
        task, stale = entry["task"], entry["stale"]
        if task not in {None, *tasks} or task in known or type(stale) is not bool:
            raise ValueError("the known queries do not match its tasks")
        known[task] = replace(KnownScores.of(entry["score"], entry["error_rate"], of_entry), stale=stale)
        if known[task].threshold != entry["threshold"]:
            raise ValueError("the threshold is not that of its known queries")
    return known


def _moments(counts: list[int], rows: Tensor, matrices: Tensor) -> Iterator[SecondMoment]:
    """Those of all units, from so many rows for each or from its upper triangle."""
    of_rows, triangles = iter(rows.split([count for count in counts if count != AS_MATRIX])), iter(matrices)
    dimension = rows.shape[1]
    upper = torch.triu_indices(dimension, dimension)
    for count in counts:
        if count == AS_MATRIX:
            matrix = rows.new_zeros(dimension, dimension)
            matrix[upper[0], upper[1]] = next(triangles)
            yield SecondMoment(matrix=matrix + matrix.triu(1).mT)
        else:
            yield SecondMoment(rows=next(of_rows))
