"""No backbone: the kernel acts on the inputs themselves, for features and embeddings made elsewhere."""

from __future__ import annotations

import math
from collections.abc import Sequence

from torch import Tensor

from kcl.core.shapes import Float
from kcl.functional.noise import Noise
from kcl.nets.backbone import Backbone


class Identity(Backbone):
    """x → x, flattened. Nothing in it is trained, so later tasks cannot change what earlier ones rest on."""

    sees_images = False

    def __init__(self, input_shape: Sequence[int]) -> None:
        super().__init__()
        self.features = math.prod(input_shape)

    def forward(self, x: Float[Tensor, "n ..."], noise: Noise | None = None) -> Float[Tensor, "n d"]:  # noqa: ARG002
        return x.flatten(1)
