"""Every setting of a run: its name, type, range, meaning and default. The defaults are the paper's for Permuted MNIST;
what a benchmark or a method sets otherwise is in `methods.recipes`.
"""

from __future__ import annotations

import dataclasses
import difflib
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kcl.errors import KclError

KERNELS = {
    "vrf": "variational random features, prior learned from the batch (the paper's method)",
    "vrf-uninformative": "variational random features with the prior N(0, I)",
    "rff": "fixed random Fourier features of the RBF kernel",
    "linear": "inner product of the features",
    "polynomial": "(x·y + 1)^degree",
    "rbf": "exp(−γ‖x − y‖²)",
    "laplacian": "exp(−γ‖x − y‖₁), which the authors' code calls RBF",
}
BACKBONES = {
    "mlp": "fully connected, for MNIST and small inputs of any shape",
    "cifar-resnet": "ResNet18 of width 20, 160 features, for colour images of about 32×32",
    "miniimagenet-resnet": "ResNet18 with a 7×7 stem, 512 features, for colour images of about 84×84",
    "identity": "none: the kernel acts on the inputs, for features and embeddings made elsewhere",
}
FEATURE_NORMS = {
    "l2": "each sample's features have length one",
    "batch-minmax": "features scaled to [0, 1] over the whole batch, as in the authors' code for the MLP",
    "none": "features as the backbone gives them",
}

FISHERS = {
    "running": "running average of squared batch gradients, rescaled to [0, 1], behind the published numbers",
    "classic": "each task's own Fisher at its end, the penalties of all tasks added up",
}
OPTIMIZERS = {
    "sgd": "SGD with momentum",
    "muon": "Muon for the backbone's matrices (convolutions, linear layers), SGD with momentum for all else",
}
BATCH_NORMS = {
    "running": "running averages of the training",
    "coreset": "each task's own, of its coreset at the present weights",
}
TEST_VIEWS = {
    "plain": "a sample as it is",
    "flip": "coreset and query also mirrored, left and right exchanged",
}
AUGMENTATIONS = {
    "none": "samples as they are",
    "flip": "each sample of batch and coreset mirrored with probability one half, anew in every update",
    "flip-shift": "the same, then moved up to an eighth of its side up or down and left or right, its edge repeated",
}


def _setting(
    default: Any,
    help: str,
    low: float | None = None,
    high: float | None = None,
    *,
    above: float | None = None,
    below: float | None = None,
    choices: Mapping[str, str] | None = None,
    stackable: bool = False,
    at_test: bool = False,
) -> Any:
    """`stackable`: runs that differ in it can be trained together. `at_test`: their training does not differ at all."""
    limits = {"low": low, "high": high, "above": above, "below": below, "choices": choices}
    kinds = {"stackable": stackable, "at_test": at_test}
    return dataclasses.field(default=default, metadata={"help": help, **limits, **kinds})


@dataclass(frozen=True)
class Settings:
    """The settings of one run. Values out of range are refused when the object is made."""

    kernel: str = _setting("vrf", "kernel of the ridge regression", choices=KERNELS)
    coreset_size_per_class: int = _setting(20, "coreset samples kept per class", 1, 100_000)
    bases: int = _setting(1024, "random Fourier features D", 1, 1_000_000)
    tau: float = _setting(0.01, "weight of the KL divergence", 0.0, stackable=True)
    monte_carlo_samples: int = _setting(1, "draws of ω per training step (L)", 1, 1000)
    test_draws: int = _setting(1, "draws of ω whose probabilities are averaged at test", 1, 1000, at_test=True)
    ridge_strength: float = _setting(
        0.1, "initial l of λ = |l| + 0.01, at each task", above=0.0, high=1e6, stackable=True
    )
    rbf_gamma: float = _setting(0.5, "γ of the RBF kernel and of its fixed random features", above=0.0, stackable=True)
    laplacian_gamma: float = _setting(0.25, "γ of the Laplacian kernel", above=0.0, stackable=True)
    polynomial_degree: int = _setting(3, "degree of the polynomial kernel", 1, 10)
    feature_norm: str = _setting("l2", "how features are normalised before the kernel", choices=FEATURE_NORMS)
    backbone: str = _setting("mlp", "the network that turns inputs into features", choices=BACKBONES)
    feature_stages: int = _setting(1, "how many of a ResNet's last stages give features, side by side", 1, 4)
    width: int = _setting(256, "units per hidden layer of the MLP", 1, 65_536)
    layers: int = _setting(2, "hidden layers of the MLP", 1, 64)
    dropout: float = _setting(0.5, "dropout rate of the backbone while training", 0.0, below=1.0, stackable=True)
    batch_size: int = _setting(10, "samples per step", 1, 1_000_000)
    epochs: int = _setting(1, "passes over each task's training samples", 1, 10_000)
    lr: float = _setting(0.1, "learning rate η of SGD", above=0.0, stackable=True)
    lr_decay: float = _setting(
        0.8, "factor per task: task t (from 0) uses η · decay^(t + 1)", above=0.0, high=1.0, stackable=True
    )
    lr_floor: float = _setting(5e-5, "the learning rate never falls below this", 0.0, stackable=True)
    momentum: float = _setting(0.8, "momentum of SGD, begun anew at each task", 0.0, below=1.0, stackable=True)
    optimizer: str = _setting("sgd", "what follows the gradient", choices=OPTIMIZERS)
    muon_lr: float = _setting(0.005, "learning rate of Muon at the first task", above=0.0, stackable=True)
    muon_lr_decay: float = _setting(
        0.9, "factor per task: task t (from 0) uses muon_lr · decay^t", above=0.0, high=1.0, stackable=True
    )
    updates_per_batch: int = _setting(1, "updates in a row on each batch, each with noise of its own", 1, 1000)
    augmentation: str = _setting("none", "how samples are varied while training", choices=AUGMENTATIONS)
    rotation_labels: bool = _setting(False, "images in four rotations, classes become (class, rotation) pairs")
    weight_average: float = _setting(
        0.0, "weight of the past in an average of the weights that is used at test; 0: none", 0.0, below=1.0,
        stackable=True, at_test=True,
    )  # fmt: skip
    average_ramp: float = _setting(
        9.0, "the average of the weights reaches back over one in this many of all updates at most", above=0.0,
        high=1e6, stackable=True, at_test=True,
    )  # fmt: skip
    batch_norm: str = _setting("running", "whose statistics BatchNorm uses at test", choices=BATCH_NORMS, at_test=True)
    test_views: str = _setting("plain", "how a sample is shown at test", choices=TEST_VIEWS, at_test=True)
    test_strength: float = _setting(
        1.0, "λ at test, as a multiple of the one learned", above=0.0, high=1e6, at_test=True
    )
    shared_metric: float = _setting(
        0.0, "share of the scatter within classes, over all coresets, in the features' metric at test; 0: none", 0.0,
        below=1.0, at_test=True,
    )  # fmt: skip
    soft_targets: float = _setting(
        0.0, "the coreset's targets are one-hot plus this times a matrix that is learned; 0: one-hot", 0.0, 1e3,
        stackable=True,
    )  # fmt: skip
    warm_start: bool = _setting(False, "λ and scale of a task begin where those of the task before ended")
    log_variance_bound: float = _setting(
        0.0, "log-variances of ω are held within ± this, smoothly; 0: they are free", 0.0, 80.0
    )
    memory_per_class: int = _setting(1, "samples A-GEM and ER-Reservoir keep per class and task", 1, 100_000)
    recalled_per_step: int = _setting(10, "samples A-GEM and ER-Reservoir recall in a step", 1, 1_000_000)
    ewc_fisher: str = _setting("running", "how EWC finds which weights matter", choices=FISHERS)
    ewc_strength: float = _setting(10.0, "λ of EWC's penalty λ Σ F (θ − θ*)²", 0.0, stackable=True)
    ewc_decay: float = _setting(0.9, "weight of the newest gradients in the running Fisher", 0.0, 1.0, stackable=True)
    ewc_window: int = _setting(10, "steps whose gradients enter the running Fisher together", 1, 1_000_000)
    ewc_fisher_samples: int = _setting(200, "training samples a classic Fisher is computed from", 1, 10_000_000)

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            _check(field, getattr(self, field.name))

    def replace(self, **changes: Any) -> Settings:
        """A copy with some values changed; unknown names are refused with the nearest known ones."""
        for name in changes:
            _field(name)
        return dataclasses.replace(self, **changes)

    def stacking_key(self) -> tuple[Any, ...]:
        """The same for settings whose runs can be trained together: they differ in stackable numbers, and at test."""
        kinds = ((field.name, field.metadata) for field in dataclasses.fields(self))
        fixed = [getattr(self, name) for name, kind in kinds if not kind["stackable"] and not kind["at_test"]]
        return (*fixed, self.dropout > 0.0, self.soft_targets > 0.0)

    def testing_key(self) -> tuple[Any, ...]:
        """The same for settings whose runs can be tested together: at test they differ in stackable numbers only."""
        kinds = ((field.name, field.metadata) for field in dataclasses.fields(self))
        fixed = [getattr(self, name) for name, kind in kinds if kind["at_test"] and not kind["stackable"]]
        return (*fixed, self.weight_average > 0.0)

    def as_trained(self) -> Settings:
        """What training knows of: the settings that act at test only are left at their defaults."""
        own = [field for field in dataclasses.fields(self) if field.metadata["at_test"]]
        changes = {field.name: field.default for field in own if getattr(self, field.name) != field.default}
        return self.replace(**changes) if changes else self

    def to_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self)


AT_TEST = tuple(field.name for field in dataclasses.fields(Settings) if field.metadata["at_test"])
"""The settings that act at test only: runs that differ in nothing else are trained once."""


def nearest(name: str, known: list[str]) -> str:
    """'; did you mean …?' or the whole list, to end an error message with."""
    close = difflib.get_close_matches(name, known, n=3, cutoff=0.55) or [k for k in known if name and name in k][:3]
    return f"did you mean {' or '.join(close)}?" if close else f"known: {', '.join(known)}"


_TRUTHS = {"true": True, "false": False}


def parse_setting(name: str, text: str) -> Any:
    """The value of `--set name=text`, with its type and range checked."""
    field = _field(name)
    kind: type = type(field.default)
    try:
        value = _TRUTHS[text.lower()] if kind is bool else kind(text)
    except (ValueError, KeyError):
        raise KclError(f"setting {name}: {text!r} is not {_kind(kind)}; expected {describe_range(name)}") from None
    _check(field, value)
    return value


def describe_range(name: str) -> str:
    """What a setting accepts, in words."""
    field = _field(name)
    limits = field.metadata
    if type(field.default) is bool:
        return _kind(bool)
    if limits["choices"]:
        return "one of " + ", ".join(limits["choices"])
    words = [_kind(type(field.default))]
    words += [f"≥ {limits['low']:g}"] if limits["low"] is not None else []
    words += [f"> {limits['above']:g}"] if limits["above"] is not None else []
    words += [f"≤ {limits['high']:g}"] if limits["high"] is not None else []
    words += [f"< {limits['below']:g}"] if limits["below"] is not None else []
    return " ".join(words)


def _kind(kind: type) -> str:
    return {int: "a whole number", float: "a number", str: "a word", bool: "true or false"}[kind]


def _field(name: str) -> dataclasses.Field[Any]:
    known = {field.name: field for field in dataclasses.fields(Settings)}
    if name not in known:
        raise KclError(f"unknown setting {name!r}; {nearest(name, list(known))}")
    return known[name]


def _check(field: dataclasses.Field[Any], value: Any) -> None:
    kind: type = type(field.default)
    limits = field.metadata
    right_type = isinstance(value, kind) or (kind is float and isinstance(value, int))
    if not right_type or isinstance(value, bool) != (kind is bool):
        raise KclError(f"setting {field.name}: {value!r} is not {_kind(kind)}; expected {describe_range(field.name)}")
    if kind is bool:
        return
    if kind is str:
        fine = value in limits["choices"]
        if not fine:
            raise KclError(f"unknown {field.name} {value!r}; {nearest(value, list(limits['choices']))}")
        return
    fine = (
        abs(value) <= sys.float_info.max  # false for nan, and for whole numbers no float can hold
        and (limits["low"] is None or value >= limits["low"])
        and (limits["high"] is None or value <= limits["high"])
        and (limits["above"] is None or value > limits["above"])
        and (limits["below"] is None or value < limits["below"])
    )
    if not fine:
        raise KclError(f"setting {field.name}: {value} is out of range; expected {describe_range(field.name)}")
