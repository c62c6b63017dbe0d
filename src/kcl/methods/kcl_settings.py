"""The settings of kernel continual learning."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from kcl.core.settings import Settings, setting
from kcl.errors import KclError
from kcl.methods.coreset import LARGEST
from kcl.methods.feature_maps import FOR_MANY_RUNS
from kcl.methods.ridge_kernels import KERNELS

FEATURE_NORMS = {
    "l2": "each sample's features have length one",
    "batch-minmax": "features scaled to [0, 1] over the whole batch, as in the authors' code for the MLP",
    "none": "features as the backbone gives them",
}
BATCH_NORMS = {
    "running": "running averages of the training",
    "coreset": "statistics of the task's coreset at the current weights; running averages where no task is named",
}
NETWORK_LOSSES = {
    "ridge": "that of the ridge classifier on the coreset, as published",
    "linear": "that of a linear output layer for the task; the coreset is not seen in training",
}
CLASS_HEADS = {
    "joint-ridge": "ridge regression on all coresets, every class weighing the same, λ by leave-one-out",
    "class-means": "the nearest class mean",
    "shared-covariance": "the nearest class mean by the covariance within classes (linear discriminant analysis)",
}


@dataclass(frozen=True)
class KclSettings(Settings):
    kernel: str = setting("vrf", "kernel of the ridge regression", choices=KERNELS)
    coreset_size_per_class: int = setting(20, "coreset samples kept per class", 1, LARGEST)
    bases: int = setting(1024, "random Fourier features D", 1, 1_000_000)
    tau: float = setting(0.01, "weight of the KL divergence", 0.0, stackable=True)
    monte_carlo_samples: int = setting(1, "draws of ω per training step (L)", 1, 1000)
    test_draws: int = setting(1, "draws of ω whose probabilities are averaged at test", 1, 1000, at_test=True)
    ridge_strength: float = setting(
        0.1, "initial l of λ = |l| + 0.01, at each task", above=0.0, high=1e6, stackable=True
    )
    rbf_gamma: float = setting(0.5, "γ of the RBF kernel and of its fixed random features", above=0.0, stackable=True)
    laplacian_gamma: float = setting(0.25, "γ of the Laplacian kernel", above=0.0, stackable=True)
    polynomial_degree: int = setting(3, "degree of the polynomial kernel", 1, 10)
    feature_norm: str = setting("l2", "how features are normalised before the kernel", choices=FEATURE_NORMS)
    batch_norm: str = setting(
        "running", "statistics that BatchNorm uses at test", choices=BATCH_NORMS, at_test=True, since=3
    )
    test_strength: float = setting(
        1.0, "λ at test, as a multiple of the one learned, or of the initial one with network_loss=linear", above=0.0,
        high=1e6, at_test=True, since=3,
    )  # fmt: skip
    shared_metric: float = setting(
        0.0, "share of the within-class scatter, over all coresets, in the features' metric at test; 0: none", 0.0,
        below=1.0, at_test=True, since=3,
    )  # fmt: skip
    class_head: str = setting(
        "joint-ridge", "classifier over the classes of all tasks, where no task is named", choices=CLASS_HEADS,
        at_test=True, since=5,
    )  # fmt: skip
    class_features: str = setting("relu", "features ψ of that classifier", choices=FOR_MANY_RUNS, at_test=True, since=5)
    class_bases: int = setting(2048, "random features of that classifier", 1, 65_536, at_test=True, since=5)
    soft_targets: float = setting(
        0.0, "coreset targets are one-hot plus this times a learned matrix; 0: one-hot", 0.0, 1e3,
        stackable=True, off_at_zero=True, since=3,
    )  # fmt: skip
    matched_targets: bool = setting(
        False, "at the end of a task its coreset gets targets with which it has the class means of all its samples",
        since=6,
    )  # fmt: skip
    network_loss: str = setting("ridge", "cross-entropy that trains the network", choices=NETWORK_LOSSES, since=7)
    warm_start: bool = setting(False, "λ and scale of a task start from those of the task before", since=3)
    log_variance_bound: float = setting(
        0.0, "bound on the absolute log-variances of ω, applied smoothly; 0: unbounded", 0.0, 80.0, since=3
    )

    def check_network_loss(self) -> None:
        """Refuse what only the ridge loss trains."""
        if self.network_loss == "linear" and KERNELS[self.kernel].inferred:
            raise KclError(
                f"network_loss=linear does not train the posterior that kernel={self.kernel} needs: set kernel=linear "
                "or kernel=rff"
            )
        if self.network_loss == "linear" and self.soft_targets:
            raise KclError("network_loss=linear does not train soft_targets: set soft_targets=0")

    def as_trained(self) -> Self:
        """Matched targets are those of the averaged network's features, so that they depend on the average."""
        trained = super().as_trained()
        if self.matched_targets:
            return trained.replace(weight_average=self.weight_average, average_ramp=self.average_ramp)
        return trained

    @property
    def kernel_name(self) -> str:
        return self.kernel

    @property
    def needs_batch_norm(self) -> bool:
        return self.batch_norm == "coreset"

    @property
    def random_features(self) -> int:
        return self.bases
