"""The tensors of a saved model with a streaming head: one tensor of each kind, however many tasks there are.

`features.…` are those of the feature map. `rows` and `matrices` hold the second moments of the units one after the
other (a matrix as its upper triangle), `cross`, `sums`, `squares` and `counts` the rest of their statistics, `total`
the sum of all second moments, `known` the scores of known queries. Which unit has what is listed in `model.json`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from kcl.benchmarks.task import View
from kcl.functional.statistics import SecondMoment, Statistics
from kcl.methods.feature_maps import FEATURE_MAPS
from kcl.models.continual_model import ContinualModel
from kcl.models.features import Features
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
        [
            unit.task,
            unit.label,
            AS_MATRIX if part.moment.rows is None else len(part.moment.rows),
            part.targets,
            unit.held_out,
        ]
        for unit, part in heads.ridge.units.items()
    ]
    moment = heads.ridge.moment
    return {
        "settings": heads.settings.to_dict(),
        "features": heads.ridge.features.identity(),
        "units": units,
        "known": [
            {"task": task} | {name: getattr(known, name) for name in _OF_KNOWN} | {"queries": len(known.scores)}
            for task, known in heads.known.items()
        ],
        "total": None if moment is None else AS_MATRIX if moment.rows is None else len(moment.rows),
    }


def restore(
    model: ContinualModel, about: Mapping[str, Any], file: Any, shape: tuple[int, ...], dtype: torch.dtype, view: View
) -> None:
    """Fill a model from an open safetensors file. Its tasks are known already."""
    model.streaming = StreamingSettings().replace(**about["settings"])
    features = _features(about["features"], file, math.prod(shape))
    heads = StreamingHeads(model.streaming, features, model.seed, torch.device(model.device))
    dimension, device = features.dimension, heads.device
    tensors = {name: file.get_tensor(name) for name in file.keys() if not name.startswith("features.")}  # noqa: SIM118
    optional = {name for name, there in (("known", about.get("known")), ("total", about["total"] is not None)) if there}
    if tensors.keys() != {"rows", "matrices", "cross", "sums", "squares", "counts", *optional}:
        raise ValueError("it does not have the tensors that its statistics consist of")
    if any(tensor.dtype != torch.float64 for tensor in tensors.values()):
        raise ValueError("its statistics are not in double precision")
    entries = [(Unit(str(task), int(label), bool(held)), int(rows), int(width))
               for task, label, rows, width, held in about["units"]]  # fmt: skip
    moments = _moments([rows for _, rows, _ in entries], tensors["rows"], tensors["matrices"], dimension)
    widths = [width for *_, width in entries]
    parts = [tensors[name].split(widths, dim=-1) for name in ("cross", "sums", "squares")]
    units = {}
    for (unit, _, width), moment, cross, sums, squares, count in zip(
        entries, moments, *parts, tensors["counts"].tolist(), strict=True
    ):
        known = len(model.tasks[unit.task].labels)
        if not (unit.label == WHOLE and 0 < width <= known) and not (0 <= unit.label < known and width == 1):
            raise ValueError("its statistics do not match its tasks")
        if cross.shape != (dimension, width) or not sums.shape == squares.shape == (width,) or not count > 0.0:
            raise ValueError("the shapes of its statistics do not match its features")
        cross, sums, squares = (tensor.contiguous().to(device) for tensor in (cross, sums, squares))
        units[unit] = Statistics(_to(moment, device), cross, sums, squares, count)
    total = tensors.get("total")
    if total is not None and total.shape != (dimension if about["total"] == AS_MATRIX else about["total"], dimension):
        raise ValueError("the shape of its total does not match its features")
    moment = SecondMoment(matrix=total) if about["total"] == AS_MATRIX else SecondMoment(rows=total)
    heads.ridge.install(units, None if total is None else _to(moment, device))
    heads.known = _known(model, about.get("known", []), tensors.get("known", torch.zeros(0)).to(device))
    model.adopt(heads, shape, dtype, view)


def sizes(about: Mapping[str, Any], file: Any) -> dict[str, int]:
    """Of what the statistics consist, without loading them."""
    kinds = ("rows", "matrices", "cross", "sums", "squares", "counts", "total")
    shapes = [file.get_slice(name).get_shape() for name in file.keys() if name in kinds]  # noqa: SIM118
    return {"units": len(about["units"]), "statistics_bytes": 8 * sum(map(math.prod, shapes))}


def _heads(model: ContinualModel) -> StreamingHeads:
    assert isinstance(model.heads, StreamingHeads)  # noqa: S101 - chosen by the model's head
    return model.heads


def _features(saved: Mapping[str, Any], file: Any, inputs: int) -> Features:
    """The feature map, checked against the shapes that its kind requires."""
    identity = dict(saved)
    sha256, kind = identity.pop("sha256"), FEATURE_MAPS[identity["kind"]]
    prefix = "features."
    buffers = {name.removeprefix(prefix): file.get_tensor(name) for name in file.keys() if name.startswith(prefix)}  # noqa: SIM118
    StreamingSettings(bases=identity["bases"], width=identity["width"])  # in range
    if inputs != identity["inputs"]:
        raise ValueError("its features do not match its inputs")
    required = kind.shapes(buffers, inputs, identity["bases"])
    features = Features(**identity, buffers=buffers)
    if {name: tuple(tensor.shape) for name, tensor in buffers.items()} != required:
        raise ValueError("the shapes of its features are not those of their kind")
    if features.identity()["sha256"] != sha256:
        raise ValueError("its features do not have the SHA-256 that it says")
    return features


def _known(model: ContinualModel, entries: list[dict[str, Any]], scores: Tensor) -> dict[str | None, KnownScores]:
    """The scores of known queries that decide which are not answered."""
    several, known = scores.split([int(entry["queries"]) for entry in entries]), {}
    for entry, of_entry in zip(entries, several, strict=True):
        task, stale = entry["task"], entry["stale"]
        if task not in {None, *model.tasks} or task in known or type(stale) is not bool:
            raise ValueError("the known queries do not match its tasks")
        known[task] = replace(KnownScores.of(entry["score"], entry["error_rate"], of_entry), stale=stale)
        if known[task].threshold != entry["threshold"]:
            raise ValueError("the threshold is not that of its known queries")
    return known


def _moments(counts: list[int], rows: Tensor, matrices: Tensor, dimension: int) -> list[SecondMoment]:
    several = iter(rows.split([count for count in counts if count != AS_MATRIX]))
    upper = torch.triu_indices(dimension, dimension)
    if rows.shape[1:] != (dimension,) or matrices.shape != (counts.count(AS_MATRIX), upper.shape[1]):
        raise ValueError("the shapes of its second moments do not match its features")
    triangles = iter(matrices)
    moments = []
    for count in counts:
        if count == AS_MATRIX:
            matrix = torch.zeros(dimension, dimension, dtype=torch.float64)
            matrix[upper[0], upper[1]] = next(triangles)
            moments.append(SecondMoment(matrix=matrix + matrix.triu(1).mT))
        else:
            moments.append(SecondMoment(rows=next(several)))
    return moments


def _to(moment: SecondMoment, device: torch.device) -> SecondMoment:
    return SecondMoment(*(None if part is None else part.to(device) for part in (moment.rows, moment.matrix)))
