"""All parameters of a model as one flat tensor, to update or reduce them at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn


def matrix_names(module: nn.Module) -> list[str]:
    """Names of the parameters that are matrices: linear layers, and convolutions as (out, in · k · k)."""
    return [name for name, parameter in module.named_parameters() if parameter.ndim >= 2]


class Layout:
    """Where each parameter of a model lies in one flat tensor of `size` entries; the last are padding, always zero."""

    def __init__(self, model: nn.Module) -> None:
        # Large ones first: their sizes are multiples of four, which keeps them aligned for fast batched products.
        named = sorted(model.named_parameters(), key=lambda item: -item[1].numel())
        self.sizes = [parameter.numel() for _, parameter in named]
        self.shapes = {name: parameter.shape for name, parameter in named}
        self.trained = [parameter.requires_grad for _, parameter in named]
        self.padding = -sum(self.sizes) % 64
        self.size = sum(self.sizes) + self.padding

    def split(self, flat: Tensor) -> dict[str, Tensor]:
        """Parameters by name, as views of flat tensors (… × size)."""
        return self.named(self.parts(flat))

    def parts(self, flat: Tensor) -> list[Tensor]:
        """The same, still flat (… × n), in the layout's order."""
        return list(flat.split([*self.sizes, self.padding], dim=-1)[: len(self.sizes)])

    def named(self, parts: Sequence[Tensor]) -> dict[str, Tensor]:
        """The result of `parts`, shaped and by name."""
        named = zip(parts, self.shapes.items(), strict=True)
        return {name: part.view(*part.shape[:-1], *shape) for part, (name, shape) in named}

    def flatten(self, parts: Mapping[str, Tensor]) -> Tensor:
        """The inverse of `split` for one model."""
        tensors = [parts[name].reshape(-1) for name in self.shapes]
        return torch.cat([*tensors, tensors[0].new_zeros(self.padding)])

    def weights(self, model: nn.Module) -> Tensor:
        """A copy of a model's parameters."""
        return self.flatten({name: parameter.detach() for name, parameter in model.named_parameters()})
