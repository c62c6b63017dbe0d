"""Explicit features ψ with ψ(x)·ψ(y) ≈ k(x, y), fixed before any data are seen: by a seed, or by given landmarks.

They are what `functional.statistics` sums up. A map is a subclass of `FeatureMap` and a line in `FEATURE_MAPS`. Inputs
arrive scaled and divided by the kernel's width, so that every map has its natural scale at one.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from kcl.core.shapes import Float
from kcl.functional import kernels

FOR_DISTANCES = 500
"""Samples whose median distance is a kernel's width."""
DEGREE = 2
"""Of the polynomial kernel."""
Buffers = dict[str, Tensor]


class FeatureMap(ABC):
    """ψ: its random tensors, and how they are applied. One object serves every model; the tensors belong to a model."""

    summary: ClassVar[str]
    local: ClassVar[bool] = False
    """Whether k depends on distances, so that its width should follow the distances between samples."""
    norm: ClassVar[float] = 2.0
    """Of these distances."""
    given: ClassVar[str] = ""
    """The tensor that is handed in (`of_given`), where a map is not drawn."""

    def draw(self, inputs: int, bases: int, rng: np.random.Generator) -> Buffers:
        """The tensors of a map from `inputs` numbers to about `bases` features, in float64."""
        raise ValueError("it is made of what is given")

    def of_given(self, given: Float[Tensor, "m d"], rng: np.random.Generator) -> Buffers:
        """With `given`: the tensors of the map, in float64."""
        raise ValueError("it is drawn")

    def shapes(self, buffers: Buffers, inputs: int, bases: int) -> dict[str, tuple[int, ...]]:
        """Those that tensors of this kind must have."""
        drawn = self.draw(inputs, bases, np.random.default_rng(0))
        return {name: tuple(tensor.shape) for name, tensor in drawn.items()}

    @abstractmethod
    def apply(self, x: Float[Tensor, "n d"], buffers: Buffers) -> Float[Tensor, "n D"]:
        """ψ(x)."""


class LinearMap(FeatureMap):
    summary = "x and a constant: linear ridge regression"

    def draw(self, inputs: int, bases: int, rng: np.random.Generator) -> Buffers:
        return {}

    def apply(self, x: Tensor, buffers: Buffers) -> Tensor:
        return F.pad(x, (0, 1), value=1.0)


class RBFMap(FeatureMap):
    """exp(−‖x − y‖²/2) by random Fourier features (Rahimi and Recht, 2007). Frequencies are drawn in orthogonal blocks,
    which lowers the variance of the approximation (Yu et al., "Orthogonal random features", 2016).
    """

    summary = "random Fourier features of the RBF kernel exp(−‖x − y‖²/(2·width²))"
    local = True

    def draw(self, inputs: int, bases: int, rng: np.random.Generator) -> Buffers:
        return _fourier(_orthogonal_blocks(inputs, bases, rng), rng)

    def apply(self, x: Tensor, buffers: Buffers) -> Tensor:
        return kernels.fourier_features(x, buffers["frequencies"], buffers["phases"])


class LaplacianMap(RBFMap):
    summary = "random Fourier features of the Laplacian kernel exp(−‖x − y‖₁/width)"
    norm = 1.0

    def draw(self, inputs: int, bases: int, rng: np.random.Generator) -> Buffers:
        return _fourier(rng.standard_cauchy((bases, inputs)), rng)


class PosteriorMap(RBFMap):
    """√(2/D) cos(ωx + b) for frequencies that are handed in, such as draws from the posterior of a trained VRF
    (`models.posterior_frequencies`).
    """

    summary = "random Fourier features of given frequencies, such as those of a trained VRF"
    local = False
    given = "frequencies"

    def of_given(self, given: Float[Tensor, "m d"], rng: np.random.Generator) -> Buffers:
        return _fourier(given.double().cpu().numpy(), rng)

    def shapes(self, buffers: Buffers, inputs: int, bases: int) -> dict[str, tuple[int, ...]]:
        count = len(buffers["frequencies"])
        return {"frequencies": (count, inputs), "phases": (count,)}


class ReluMap(FeatureMap):
    """max(0, ωx): the arc-cosine kernel of order one (Cho and Saul, 2009), the features of RanPAC (McDonnell et al.,
    2023).
    """

    summary = "random ReLU features (arc-cosine kernel)"

    def draw(self, inputs: int, bases: int, rng: np.random.Generator) -> Buffers:
        return {"frequencies": torch.from_numpy(rng.standard_normal((bases, inputs)))}

    def apply(self, x: Tensor, buffers: Buffers) -> Tensor:
        frequencies = buffers["frequencies"]
        return math.sqrt(2.0 / len(frequencies)) * (x @ frequencies.mT).relu()


class OrthogonalReluMap(ReluMap):
    summary = "the same with directions in orthogonal blocks, as rbf has them: closer to the kernel"

    def draw(self, inputs: int, bases: int, rng: np.random.Generator) -> Buffers:
        frequencies = _orthogonal_blocks(inputs, bases, rng)
        return {"frequencies": torch.from_numpy(rng.choice([-1.0, 1.0], (bases, 1)) * frequencies)}


class PolynomialMap(FeatureMap):
    """(x·y + 1)^degree by TensorSketch: the circular convolution of independent count sketches, taken as a product of
    their Fourier transforms (Pham and Pagh, 2013).
    """

    summary = f"sketch of the polynomial kernel (x·y/width² + 1)^{DEGREE}"

    def draw(self, inputs: int, bases: int, rng: np.random.Generator) -> Buffers:
        shape = (DEGREE, inputs + 1)
        signs = torch.from_numpy(rng.choice([-1.0, 1.0], shape))
        return {
            "places": torch.from_numpy(rng.integers(bases, size=shape)),
            "signs": signs,
            "bases": torch.tensor(bases),
        }

    def apply(self, x: Tensor, buffers: Buffers) -> Tensor:
        extended = torch.cat([x, x.new_ones(len(x), 1)], dim=1)
        bases = int(buffers["bases"])
        product = x.new_ones((), dtype=torch.complex128)
        for places, signs in zip(buffers["places"], buffers["signs"], strict=True):
            sketch = x.new_zeros(len(x), bases).index_add_(1, places, extended * signs.to(x.dtype))
            product = product * torch.fft.rfft(sketch)
        return torch.fft.irfft(product, n=bases).to(x.dtype)


class NystroemMap(FeatureMap):
    """ψ(x) = k(x, L) k(L, L)^(−1/2) for landmarks L (Williams and Seeger, 2001), with the RBF kernel."""

    summary = "RBF kernel with given landmarks (Nyström)"
    local = True
    given = "landmarks"

    def of_given(self, given: Float[Tensor, "m d"], rng: np.random.Generator) -> Buffers:
        values, vectors = torch.linalg.eigh(kernels.rbf(given, given))
        kept = values > values.max() * len(values) * torch.finfo(values.dtype).eps
        return {"landmarks": given, "whitening": vectors[:, kept] / values[kept].sqrt()}

    def shapes(self, buffers: Buffers, inputs: int, bases: int) -> dict[str, tuple[int, ...]]:
        count = len(buffers["landmarks"])
        return {"landmarks": (count, inputs), "whitening": (count, buffers["whitening"].shape[1])}

    def apply(self, x: Tensor, buffers: Buffers) -> Tensor:
        return kernels.rbf(x, buffers["landmarks"]) @ buffers["whitening"]


FEATURE_MAPS: dict[str, FeatureMap] = {
    "rbf": RBFMap(),
    "laplacian": LaplacianMap(),
    "relu": ReluMap(),
    "orthogonal-relu": OrthogonalReluMap(),
    "polynomial": PolynomialMap(),
    "linear": LinearMap(),
    "nystroem": NystroemMap(),
    "vrf": PosteriorMap(),
}
FOR_MANY_RUNS = {name: FEATURE_MAPS[name] for name in ("rbf", "laplacian", "relu", "linear")}
"""Features that one call computes for many runs at once."""


def median_distance(x: Float[Tensor, "n ..."], rng: np.random.Generator, norm: float = 2.0) -> float:
    """The median distance between up to `FOR_DISTANCES` samples; one where they are all equal."""
    rows = torch.from_numpy(rng.permutation(len(x))[:FOR_DISTANCES])
    distances = torch.pdist(x[rows.to(x.device)].flatten(1).double(), p=norm)
    positive = distances[distances > 0]
    return float(positive.median()) if len(positive) else 1.0


def _fourier(frequencies: np.ndarray, rng: np.random.Generator) -> Buffers:
    phases = 2.0 * math.pi * rng.random(len(frequencies))
    return {"frequencies": torch.from_numpy(frequencies), "phases": torch.from_numpy(phases)}


def _orthogonal_blocks(inputs: int, bases: int, rng: np.random.Generator) -> np.ndarray:
    """Rows distributed as N(0, I) but for their sign, those of a block of `inputs` orthogonal to each other."""
    blocks = []
    for start in range(0, bases, inputs):
        rows = min(inputs, bases - start)
        directions = np.linalg.qr(rng.standard_normal((inputs, inputs)))[0][:rows]
        lengths = np.sqrt(rng.chisquare(inputs, size=rows))
        blocks.append(lengths[:, None] * directions)
    return np.concatenate(blocks)
