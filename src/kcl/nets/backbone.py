"""The shared feature extractor h_θ: what a backbone must offer, and how any module becomes one."""

from __future__ import annotations

import copy
import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import cached_property

import torch
from torch import Tensor, nn

from kcl.core.shapes import Float
from kcl.errors import KclError
from kcl.functional.noise import Noise

BATCH_NORMS = nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm


class Backbone(nn.Module, ABC):
    """Turns inputs into features. A call with `noise` is training (dropout, batch statistics); without, it is not."""

    features: int
    parts: tuple[int, ...] = ()
    """Number of features from each stage, the last stage last; empty where there is only one."""
    sees_images: bool = True
    """Whether inputs keep their spatial layout, so that a rotated or mirrored image is still an image."""
    gathers: bool = False
    """Whether BatchNorm can take its statistics from a set of samples: `gather`, and `forward` with `moments`."""

    @abstractmethod
    def forward(self, x: Float[Tensor, "n ..."], noise: Noise | None = None) -> Float[Tensor, "n d"]: ...

    def forward_parts(self, parts: Sequence[Float[Tensor, "_ ..."]], noise: Noise) -> list[Float[Tensor, "_ d"]]:
        """Features of several batches while training, each as if it had been passed alone.

        They share every product unless samples of a batch affect each other.
        """
        if self.mixes_samples:
            return [self(part, noise) for part in parts]
        return list(self(torch.cat(list(parts)), noise).split([len(part) for part in parts]))

    def gather(self, x: Float[Tensor, "n ..."]) -> tuple[Float[Tensor, "n d"], Float[Tensor, " k"]]:  # noqa: ARG002
        """If it `gathers`: features of a set, with BatchNorm statistics of that set, and these statistics."""
        raise KclError("this backbone cannot take BatchNorm statistics from a set of samples: only the ResNets can")

    @cached_property
    def mixes_samples(self) -> bool:
        """Whether a sample's features depend on the rest of its batch in training, as with BatchNorm."""
        return any(isinstance(module, BATCH_NORMS) for module in self.modules())


class Identity(Backbone):
    """x → x, flattened: for features and embeddings computed elsewhere. Nothing is trained, so later tasks cannot
    change the features of earlier ones.
    """

    sees_images = False

    def __init__(self, input_shape: Sequence[int]) -> None:
        super().__init__()
        self.features = math.prod(input_shape)

    def forward(self, x: Float[Tensor, "n ..."], noise: Noise | None = None) -> Float[Tensor, "n d"]:  # noqa: ARG002
        return x.flatten(1)


class ModuleBackbone(Backbone):
    """Any module whose output has one row per input. The module is copied and itself left unchanged."""

    def __init__(self, module: nn.Module, input_shape: Sequence[int]) -> None:
        super().__init__()
        self.module = copy.deepcopy(module)
        self.module.eval()
        try:
            with torch.no_grad(), torch.random.fork_rng(devices=[]):
                output = self.module(torch.zeros(2, *input_shape))
                state = torch.random.get_rng_state()
                copy.deepcopy(self.module).train()(torch.zeros(2, *input_shape))
                self.draws = not torch.equal(state, torch.random.get_rng_state())
        except Exception as error:
            raise KclError(f"the backbone does not accept inputs of shape {tuple(input_shape)}: {error}") from error
        if not isinstance(output, Tensor) or output.ndim < 2 or output.shape[0] != 2:
            raise KclError("the backbone must return one tensor with one row of features per input")
        self.features = output[0].numel()

    def forward(self, x: Float[Tensor, "n ..."], noise: Noise | None = None) -> Float[Tensor, "n d"]:
        training = noise is not None
        if self.module.training != training:
            self.module.train(training)
        if noise is None or not self.draws:
            return self.module(x).flatten(1)
        # The module draws from PyTorch's global generator, as nn.Dropout does: seed that from the run for this call.
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(int(noise.uniform(1).item() * 2**24))
            return self.module(x).flatten(1)
