"""All parameters of a model as one flat tensor, for what reduces over them or moves them at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn


def matrix_names(module: nn.Module) -> list[str]:
    """The parameters that are matrices: linear layers and convolutions, seen as (out, in · k · k)."""
    return [name for name, parameter in module.named_parameters() if parameter.ndim >= 2]


class Layout:
    """Where each parameter of a model lies in one flat tensor, `size` entries long; its end is padding, always zero."""

    def __init__(self, model: nn.Module) -> None:
        # Large ones first: those are multiples of four, which keeps them aligned for the quick batched products.
        named = sorted(model.named_parameters(), key=lambda item: -item[1].numel())
        self.sizes = [parameter.numel() for _, parameter in named]
        self.shapes = {name: parameter.shape for name, parameter in named}
        self.trained = [parameter.requires_grad for _, parameter in named]
        self.padding = -sum(self.sizes) % 64
        self.size = sum(self.sizes) + self.padding

    def split(self, flat: Tensor) -> dict[str, Tensor]:
        """The parts of flat tensors (… × size) by name, as views."""
        return self.named(self.parts(flat))

    def parts(self, flat: Tensor) -> list[Tensor]:
        """The same, but still flat (… × n), in their order."""
        return list(flat.split([*self.sizes, self.padding], dim=-1)[: len(self.sizes)])

    def named(self, parts: Sequence[Tensor]) -> dict[str, Tensor]:
        """What `parts` gives, by name."""
        named = zip(parts, self.shapes.items(), strict=True)
        return {name: part.view(*part.shape[:-1], *shape) for part, (name, shape) in named}

    def flatten(self, parts: Mapping[str, Tensor]) -> Tensor:
        """The inverse of `split` for one model."""
        tensors = [parts[name].reshape(-1) for name in self.shapes]
        return torch.cat([*tensors, tensors[0].new_zeros(self.padding)])

    def weights(self, model: nn.Module) -> Tensor:
        """A model's present parameters, copied."""
        return self.flatten({name: parameter.detach() for name, parameter in model.named_parameters()})
