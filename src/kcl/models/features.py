"""ψ of a model with frozen features: fixed by a seed, so that models made apart can be added up."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

import torch
from torch import Tensor

from kcl.core.randomness import numpy_generator
from kcl.core.shapes import Float
from kcl.errors import KclError
from kcl.methods.feature_maps import FEATURE_MAPS, Buffers


@dataclass(frozen=True)
class Features:
    """ψ of a model: a feature map with its tensors. Inputs are divided by their length if `unit_length`, then by
    `width`.
    """

    kind: str
    inputs: int
    bases: int
    width: float
    unit_length: bool
    seed: int
    buffers: Buffers = field(default_factory=dict)

    def filled(self, given: Mapping[str, Tensor]) -> Features:
        """The same with tensors, which are drawn from the seed or made of what is given by name; landmarks are scaled
        like the inputs.
        """
        kind, rng = FEATURE_MAPS[self.kind], numpy_generator(self.seed, f"features {self.kind}")
        if needless := given.keys() - {kind.given}:
            source = f"made of {kind.given}" if kind.given else "drawn from the seed"
            raise KclError(f"features={self.kind!r} are {source}: leave out {', '.join(sorted(needless))}")
        if not kind.given:
            return replace(self, buffers=kind.draw(self.inputs, self.bases, rng))
        if kind.given not in given:
            raise KclError(f"features={self.kind!r} needs {kind.given}=…")
        rows = given[kind.given]
        if rows.ndim != 2 or rows.shape[1] != self.inputs or len(rows) == 0:
            raise KclError(f"{kind.given} have shape {tuple(rows.shape)}; expected rows of {self.inputs} numbers")
        buffers = kind.of_given(self.scaled(rows) if self.kind == "nystroem" else rows, rng)
        return replace(self, bases=len(rows), buffers=buffers)

    def scaled(self, x: Float[Tensor, "n ..."]) -> Float[Tensor, "n d"]:
        """What the map is applied to. Every sample is scaled alone, in float64, so that portions do not matter."""
        flat = x.flatten(1).double()
        if self.unit_length:
            flat = flat / torch.linalg.vector_norm(flat, dim=1, keepdim=True).clamp_min(1e-12)
        return flat / self.width

    def __call__(self, x: Float[Tensor, "n ..."]) -> Float[Tensor, "n D"]:
        return FEATURE_MAPS[self.kind].apply(self.scaled(x), self.buffers)

    @property
    def dimension(self) -> int:
        """D."""
        device = next((tensor.device for tensor in self.buffers.values()), None)
        return self(torch.zeros(1, self.inputs, device=device)).shape[1]

    def to(self, device: torch.device) -> Features:
        return replace(self, buffers={name: tensor.to(device) for name, tensor in self.buffers.items()})

    def identity(self) -> dict[str, Any]:
        """Models with the same identity can be added up."""
        digest = hashlib.sha256()
        for name in sorted(self.buffers):
            digest.update(name.encode() + self.buffers[name].cpu().contiguous().numpy().tobytes())
        names = (each.name for each in fields(self) if each.name != "buffers")
        return {name: getattr(self, name) for name in names} | {"sha256": digest.hexdigest()}
