"""The kernels of the ridge regression, by name.

A kernel says which tensors it keeps in the model, how it represents samples and how it compares representations. To add
one, write a subclass of `Kernel` and give it a line in `KERNELS`.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor

from kcl.core.shapes import Float
from kcl.functional import kernels, ridge
from kcl.functional.gaussian import DiagonalGaussian
from kcl.functional.noise import Noise

if TYPE_CHECKING:
    from kcl.methods.kcl_settings import KclSettings  # which names the kernels


class Kernel(ABC):
    """k(x, y) = compare(represent(x), represent(y)). Its tensors live in the model that is passed to every method."""

    summary: ClassVar[str]
    explicit: ClassVar[bool] = False
    """Whether k is the inner product of representations. The ridge regression then collapses to one weight matrix
    (`ridge.primal_weights`), and a prediction no longer needs the coreset."""
    fourier: ClassVar[bool] = False
    """Whether samples are represented by random Fourier features, of the frequencies that `frequencies` returns."""
    inferred: ClassVar[int] = 0
    """How many Gaussians over frequencies are inferred from features: none, the posterior, or posterior and prior."""

    def __init__(self, settings: KclSettings) -> None:
        self.settings = settings

    def buffers(self, features: int) -> dict[str, Tensor]:
        """Tensors saved with the model, drawn from PyTorch's generator, which is seeded for the run."""
        return {}

    def numbers(self) -> dict[str, float]:
        """Parameters of the kernel that become scalar buffers of the model, so that stacked runs may differ in them."""
        return {}

    def represent(
        self, model: Any, x: Float[Tensor, "n d"], posterior: DiagonalGaussian | None, noise: Noise
    ) -> Float[Tensor, "n r"]:
        """What is computed once per sample; for inferred frequencies, with one draw of them."""
        return x

    def frequencies(self, model: Any, posterior: DiagonalGaussian | None, noise: Noise) -> Float[Tensor, "D d"] | None:
        """With `fourier`: the frequencies ω, formed once because many queries will meet the same ones."""
        return None

    @abstractmethod
    def compare(self, model: Any, x: Float[Tensor, "n r"], y: Float[Tensor, "m r"]) -> Float[Tensor, "n m"]:
        """The Gram matrix of two sets of representations."""

    def compare_in_onnx(self, model: Any, x: Float[Tensor, "n r"], y: Float[Tensor, "m r"]) -> Float[Tensor, "n m"]:
        """The same, written with operations that ONNX has."""
        return self.compare(model, x, y)

    def weights(
        self, model: Any, anchors: Float[Tensor, "m r"], targets: Float[Tensor, "m c"], strength: Float[Tensor, ""]
    ) -> Float[Tensor, "k c"]:
        """The ridge solution on the coreset: primal where the kernel is explicit, dual otherwise."""
        if self.explicit:
            return ridge.primal_weights(anchors, targets, strength)
        return ridge.dual_weights(self.compare(model, anchors, anchors), targets, strength)

    @abstractmethod
    def diagonal(self, model: Any, x: Float[Tensor, "n r"]) -> Float[Tensor, " n"]:
        """k(x, x) of each representation."""


class Linear(Kernel):
    summary = "inner product of the features"
    explicit = True

    def compare(self, model: Any, x: Tensor, y: Tensor) -> Tensor:
        return kernels.linear(x, y)

    def diagonal(self, model: Any, x: Tensor) -> Tensor:
        return x.square().sum(-1)


class Polynomial(Linear):
    summary = "(x·y + 1)^degree"
    explicit = False

    def compare(self, model: Any, x: Tensor, y: Tensor) -> Tensor:
        return kernels.polynomial(x, y, self.settings.polynomial_degree)

    def diagonal(self, model: Any, x: Tensor) -> Tensor:
        return (super().diagonal(model, x) + 1.0) ** self.settings.polynomial_degree


class RBF(Kernel):
    summary = "exp(−γ‖x − y‖²)"

    def numbers(self) -> dict[str, float]:
        return {"gamma": self.settings.rbf_gamma}

    def compare(self, model: Any, x: Tensor, y: Tensor) -> Tensor:
        return kernels.rbf(x, y, model.gamma)

    def diagonal(self, model: Any, x: Tensor) -> Tensor:
        return x.new_ones(len(x))


class Laplacian(RBF):
    summary = "exp(−γ‖x − y‖₁), which the authors' code calls RBF"

    def numbers(self) -> dict[str, float]:
        return {"gamma": self.settings.laplacian_gamma}

    def compare(self, model: Any, x: Tensor, y: Tensor) -> Tensor:
        return kernels.laplacian(x, y, model.gamma)

    def compare_in_onnx(self, model: Any, x: Tensor, y: Tensor) -> Tensor:
        return torch.exp(-model.gamma * (x[:, None] - y[None]).abs().sum(-1))


class FixedFourier(Linear):
    summary = "fixed random Fourier features of the RBF kernel"
    fourier = True

    def buffers(self, features: int) -> dict[str, Tensor]:
        phases = 2.0 * math.pi * torch.rand(self.settings.bases)
        scale = math.sqrt(2.0 * self.settings.rbf_gamma)  # the spectral measure of exp(−γ‖x − y‖²) is N(0, 2γI)
        return {"phases": phases, "frequencies": scale * torch.randn(self.settings.bases, features)}

    def represent(self, model: Any, x: Tensor, posterior: DiagonalGaussian | None, noise: Noise) -> Tensor:
        return kernels.fourier_features(x, model.frequencies, model.phases)

    def frequencies(self, model: Any, posterior: DiagonalGaussian | None, noise: Noise) -> Tensor:
        frequencies: Tensor = model.frequencies
        return frequencies


class VariationalFourier(Linear):
    summary = "variational random features, prior learned from the batch (the paper's method)"
    fourier = True
    inferred = 2

    def buffers(self, features: int) -> dict[str, Tensor]:
        return {"phases": 2.0 * math.pi * torch.rand(self.settings.bases)}

    def represent(self, model: Any, x: Tensor, posterior: DiagonalGaussian | None, noise: Noise) -> Tensor:
        assert posterior is not None  # noqa: S101 - this kernel infers one
        draws = noise.normal(self.settings.bases, x.shape[-1])
        return kernels.variational_features(x, posterior, draws, model.phases)

    def frequencies(self, model: Any, posterior: DiagonalGaussian | None, noise: Noise) -> Tensor:
        assert posterior is not None  # noqa: S101 - this kernel infers one
        draws = noise.normal(self.settings.bases, model.backbone.features)
        return kernels.reparameterised(posterior, draws)


class UninformativeFourier(VariationalFourier):
    summary = "variational random features with the prior N(0, I)"
    inferred = 1


KERNELS: dict[str, type[Kernel]] = {
    "vrf": VariationalFourier,
    "vrf-uninformative": UninformativeFourier,
    "rff": FixedFourier,
    "linear": Linear,
    "polynomial": Polynomial,
    "rbf": RBF,
    "laplacian": Laplacian,
}
