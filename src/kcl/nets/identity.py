"""No backbone: the kernel acts on the inputs themselves, for features and embeddings computed elsewhere."""

from __future__ import annotations

import math
from collections.abc import Sequence

from torch import Tensor

from kcl.core.shapes import Float
from kcl.functional.noise import Noise
from kcl.nets.backbone import Backbone


class Identity(Backbone):
    """x → x, flattened. Nothing is trained, so later tasks cannot change the features of earlier ones."""

    sees_images = False

    def __init__(self, input_shape: Sequence[int]) -> None:
        super().__init__()
        self.features = math.prod(input_shape)

    def forward(self, x: Float[Tensor, "n ..."], noise: Noise | None = None) -> Float[Tensor, "n d"]:  # noqa: ARG002
        return x.flatten(1)
