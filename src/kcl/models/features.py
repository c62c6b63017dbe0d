"""ψ of a model with frozen features: fixed by a seed, so that models made apart can be added up."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from kcl.core.randomness import numpy_generator
from kcl.core.settings import nearest
from kcl.core.shapes import Float
from kcl.errors import KclError
from kcl.methods.feature_maps import FEATURE_MAPS, Buffers

Given = tuple[str, Tensor]
"""The name of what features are made of, and the tensor."""


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
    buffers: Buffers

    @classmethod
    def make(
        cls,
        kind: str,
        inputs: int,
        bases: int,
        width: float = 1.0,
        unit_length: bool = False,
        seed: int = 0,
        given: Given | None = None,
    ) -> Features:
        """`given`: what the kind is made of, where it is not drawn; landmarks scaled like the inputs."""
        if kind not in FEATURE_MAPS:
            raise KclError(f"unknown features {kind!r}; {nearest(kind, list(FEATURE_MAPS))}")
        if bases < 1 or not width > 0.0:
            raise KclError(f"features need at least one base and a positive width, not {bases} and {width}")
        feature_map, rng = FEATURE_MAPS[kind], numpy_generator(seed, f"features {kind}")
        if feature_map.given and (given is None or given[0] != feature_map.given):
            raise KclError(f"features={kind!r} needs {feature_map.given}=…")
        if given is not None and not feature_map.given:
            raise KclError(f"features={kind!r} are drawn from the seed: leave out {given[0]}")
        if given is not None and (given[1].ndim != 2 or given[1].shape[1] != inputs or len(given[1]) == 0):
            raise KclError(f"{given[0]} have shape {tuple(given[1].shape)}; expected rows of {inputs} numbers")
        unplaced = cls(kind, inputs, bases, width, unit_length, seed, {})
        if given is None:
            buffers = feature_map.draw(inputs, bases, rng)
        else:
            buffers = feature_map.of_given(unplaced.scaled(given[1]) if kind == "nystroem" else given[1], rng)
            bases = len(given[1])
        return cls(kind, inputs, bases, width, unit_length, seed, buffers)

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
        buffers = {name: tensor.to(device) for name, tensor in self.buffers.items()}
        return Features(self.kind, self.inputs, self.bases, self.width, self.unit_length, self.seed, buffers)

    def identity(self) -> dict[str, Any]:
        """Models with the same identity can be added up."""
        digest = hashlib.sha256()
        for name in sorted(self.buffers):
            digest.update(name.encode() + self.buffers[name].cpu().contiguous().numpy().tobytes())
        return {
            "kind": self.kind,
            "inputs": self.inputs,
            "bases": self.bases,
            "width": self.width,
            "unit_length": self.unit_length,
            "seed": self.seed,
            "sha256": digest.hexdigest(),
        }
