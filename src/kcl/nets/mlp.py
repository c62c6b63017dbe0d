"""The MNIST backbone: two hidden layers of 256, ReLU, dropout."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from kcl.core.shapes import Float
from kcl.nets.backbone import Backbone, Noise, dropout
from kcl.ops import linear


class MLP(Backbone):
    """flatten → (Linear → ReLU → dropout) × layers. Dropout also applies to the features themselves, as published."""

    dropout: Tensor
    sees_images = False

    def __init__(self, input_shape: Sequence[int], width: int = 256, layers: int = 2, dropout: float = 0.5) -> None:
        super().__init__()
        widths = [math.prod(input_shape)] + [width] * layers
        self.layers = nn.ModuleList(nn.Linear(a, b) for a, b in itertools.pairwise(widths))
        self.features = width
        self.drops = dropout > 0.0
        self.register_buffer("dropout", torch.tensor(dropout), persistent=False)

    def forward(self, x: Float[Tensor, "n ..."], noise: Noise | None = None) -> Float[Tensor, "n d"]:
        x = x.flatten(1)
        for layer in self.layers:
            x = torch.relu(linear(x, *layer.parameters()))
            if noise is not None and self.drops:
                x = dropout(x, self.dropout, noise)
        return x
