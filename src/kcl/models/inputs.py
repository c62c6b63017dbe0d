"""What people pass in – arrays, tensors, tables, sparse matrices, datasets – as tensors, and labels as arrays."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from kcl.core.shapes import Float
from kcl.errors import KclError

Label = str | int | float | bool
CHANNELS = (1, 3, 4)
LOADED = 256
"""Samples of a dataset that are put together at once."""


def as_tensor(inputs: Any) -> Tensor:
    """A tensor from a tensor, an array, nested lists, a table, a sparse matrix or a dataset, whose labels are left."""
    if isinstance(inputs, Dataset | DataLoader):
        return _loaded(inputs)[0]
    try:
        if isinstance(inputs, Tensor):
            return inputs if inputs.layout == torch.strided else inputs.to_dense()
        array = np.asarray(inputs.toarray() if hasattr(inputs, "toarray") else inputs)
        shareable = array.flags.writeable and all(stride >= 0 for stride in array.strides)
        return torch.from_numpy(array if shareable else array.copy())
    except (TypeError, ValueError, RuntimeError) as error:
        if others := [name for name in column_names(inputs) if np.asarray(inputs[name]).dtype.kind not in "biuf"]:
            raise KclError(f"there are no numbers in {', '.join(map(repr, others))}: encode or remove them") from None
        raise KclError(f"the inputs are not an array of numbers: {error}") from None


def column_names(inputs: Any) -> tuple[str, ...]:
    """Those of a table, if it names its columns."""
    names = tuple(getattr(inputs, "columns", ()))
    return names if all(isinstance(name, str) for name in names) else ()


def check_columns(expected: Sequence[str], found: Sequence[str]) -> None:
    """Refuse a table whose columns are not those of the first one, in their order."""
    if not expected or not found or tuple(expected) == tuple(found):
        return
    if sorted(expected) == sorted(found):
        raise KclError("the columns are in another order than the model's: pass table[list(model.columns)]")
    lacking, unknown = (
        ", ".join(name for name in some if name not in others)
        for some, others in ((expected, found), (found, expected))
    )
    parts = [f"lacks {lacking}" if lacking else "", f"has {unknown} besides" if unknown else ""]
    raise KclError(f"all tasks of a model have the same columns, and the table {' and '.join(filter(None, parts))}")


def labelled(inputs: Any, labels: Any) -> tuple[Tensor, np.ndarray]:
    """Inputs with their labels. A dataset or loader of pairs brings its own labels."""
    if isinstance(inputs, Dataset | DataLoader):
        if labels is not None:
            raise KclError("give a dataset of pairs (input, label), or inputs and labels, not a dataset and labels")
        x, y = _loaded(inputs)
        if y is None:
            raise KclError("the dataset has inputs alone: its items must be pairs (input, label)")
    else:
        x, y = as_tensor(inputs), np.asarray(labels)
    if y.ndim != 1 or x.ndim < 2 or len(x) != len(y):
        raise KclError(f"inputs of shape {tuple(x.shape)} do not match labels of shape {y.shape}: give one label each")
    if len(y) == 0:
        raise KclError("there are no samples to learn from")
    kinds = {type(value) for value in y.tolist()}
    if not kinds <= {str, int, float, bool} or len(kinds) > 1:
        raise KclError(f"labels must be all text or all numbers, not {', '.join(sorted(k.__name__ for k in kinds))}")
    if float in kinds and not np.isfinite(y).all():
        raise KclError("some labels are not finite numbers")
    return (x if x.dtype == torch.uint8 else x.float()), y


def weighted(x: Tensor, y: np.ndarray, sample_weight: Any) -> tuple[Tensor, np.ndarray, Float[Tensor, " n"] | None]:
    """Samples and their weights, if any are given. A sample of weight zero is as if it were not there."""
    if sample_weight is None:
        return x, y, None
    weights = as_tensor(sample_weight).double()
    if weights.shape != (len(x),) or not bool(torch.isfinite(weights).all()) or bool((weights < 0).any()):
        raise KclError(f"sample_weight must be {len(x)} numbers that are not negative, one for each sample")
    kept = weights > 0
    if not bool(kept.any()):
        raise KclError("all sample weights are zero, so that there is nothing to learn")
    return x[kept], y[kept.numpy()], weights[kept]


def checked(x: Tensor, shape: Sequence[int], columns: Sequence[str] = ()) -> Tensor:
    """Inputs. Raises unless each has the shape that the model expects and finite values."""
    if x.ndim == 4 and x.shape[3] in CHANNELS and x.shape[1] not in CHANNELS:
        raise KclError(
            f"images of shape {tuple(x.shape[1:])} have their channels last; put them first: x.transpose(0, 3, 1, 2), "
            "or x.permute(0, 3, 1, 2) of a tensor"
        )
    if tuple(x.shape[1:]) != tuple(shape) or x.ndim < 2:
        if x.ndim == 2 and len(shape) == 1:
            raise KclError(f"these rows have {x.shape[1]} columns; the model takes {shape[0]}, the same in all tasks")
        raise KclError(
            f"inputs have shape {tuple(x.shape)}; expected {tuple(shape)} for each sample, with the samples along the "
            "first dimension"
        )
    if x.dtype != torch.uint8 and not bool((finite := torch.isfinite(x.float())).all()):
        row, *place = (~finite).nonzero()[0].tolist()
        number, where = float(x[(row, *place)]), f"position {tuple(place)}"
        value = "NaN" if math.isnan(number) else f"{number:g}"
        if len(place) == 1:
            where = f"column {columns[place[0]]!r}" if columns else f"column {place[0]}"
        raise KclError(f"row {row}, {where} is {value}, which is not finite in single precision: remove or replace it")
    return x


def label_array(values: Sequence[Any]) -> np.ndarray:
    """An array of labels in their data type; of objects where some are None or types are mixed."""
    if len({type(value) for value in values}) == 1 and values[0] is not None:
        return np.array(values)
    objects = np.empty(len(values), dtype=object)
    objects[:] = values
    return objects


def _loaded(source: Any) -> tuple[Tensor, np.ndarray | None]:
    """The inputs of a dataset or loader, and the labels where its items are pairs."""
    own = torch.Generator()  # a loader would draw from the global one
    loader = source if isinstance(source, DataLoader) else DataLoader(source, batch_size=LOADED, generator=own)
    batches = [batch if isinstance(batch, list | tuple) else (batch,) for batch in loader]
    if not batches or len(batches[0]) not in (1, 2) or not isinstance(batches[0][0], Tensor):
        raise KclError("a dataset must have items, and each must be a tensor or a pair (tensor, label)")
    x = torch.cat([batch[0] for batch in batches])
    return x, np.concatenate([np.asarray(batch[1]) for batch in batches]) if len(batches[0]) == 2 else None
