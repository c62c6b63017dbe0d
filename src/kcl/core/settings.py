"""What a setting is, and the settings that every method has.

A method's settings are a frozen dataclass that inherits `Settings` and stands beside the method
(`Method.settings_type`). A field is one call of `setting`: default, meaning, range, whether runs that differ in it can
be trained together, whether it acts at test only, and since which edition it exists. Everything else follows from that:
parsing, checking, `kcl list settings`, the grouping of runs, result lines. The defaults are the paper's for Permuted
MNIST; `methods.recipes` holds what benchmarks and methods change.
"""

from __future__ import annotations

import dataclasses
import difflib
import operator
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from kcl.errors import KclError

BACKBONES = {
    "mlp": "fully connected, for MNIST and small inputs of any shape",
    "cifar-resnet": "ResNet18 of width 20, 160 features, for colour images of about 32×32",
    "miniimagenet-resnet": "ResNet18 with a 7×7 stem, 512 features, for colour images of about 84×84",
    "identity": "none: the kernel acts on the inputs, for precomputed features and embeddings",
}
OPTIMIZERS = {
    "sgd": "SGD with momentum",
    "muon": "Muon for the backbone's matrices (convolutions, linear layers), SGD with momentum for all else",
}
SCENARIOS = {
    "task": "the task of every sample is named",
    "class": "no task is named, and every task has classes of its own: all classes seen so far are compared",
    "domain": "no task is named, and all tasks have the same classes: the class counts, whichever task it is from",
}
TEST_VIEWS = {
    "plain": "the sample alone",
    "flip": "the sample and its mirror image, left and right exchanged; the same for the coreset",
}
AUGMENTATIONS = {
    "none": "samples unchanged",
    "flip": "each sample of batch and coreset mirrored with probability one half, drawn anew in every update",
    "flip-shift": "flip, then a shift by up to an eighth of the side in each direction, edge pixels repeated",
}


_TYPE_NAMES: dict[type, str] = {int: "a whole number", float: "a number", str: "a word", bool: "true or false"}
_TRUTH_VALUES = {"true": True, "false": False}
_LIMITS = {"low": operator.ge, "high": operator.le, "above": operator.gt, "below": operator.lt}
"""How a number compares with each of its limits."""


def setting(
    default: Any,
    help: str,
    low: float | None = None,
    high: float | None = None,
    *,
    above: float | None = None,
    below: float | None = None,
    choices: Mapping[str, Any] | None = None,
    stackable: bool = False,
    off_at_zero: bool = False,
    at_test: bool = False,
    since: int = 1,
) -> Any:
    """A field of a settings class. Its type is that of the default: int, float, bool, or str with `choices`,
    a table whose names are the words; it is read when it is needed, so that an entry added later is a choice too.

    `stackable`: runs that differ in this number can be trained together.
    `off_at_zero`: zero switches a part of the computation off, so runs with and without it are not stacked.
    `at_test`: acts at test only, so runs that differ in nothing else share one training.
    `since`: the edition of the settings that introduced the field. Files of earlier editions lack it; its default must
    do what was done without it. Edition 1 has what Permuted MNIST needs, 2 adds backbones and the baselines, 3 the
    strong recipe, 4 frozen features, 5 answers over all classes, 6 matched targets, 7 the loss of the network.
    """
    if type(default) not in _TYPE_NAMES or (type(default) is str) != (choices is not None):
        raise TypeError(f"a setting is a number, a bool, or a word with choices, not {default!r}")
    limits = {"low": low, "high": high, "above": above, "below": below, "choices": choices}
    kinds = {"stackable": stackable, "off_at_zero": off_at_zero, "at_test": at_test, "since": since}
    return dataclasses.field(default=default, metadata={"help": help, **limits, **kinds})


@dataclass(frozen=True)
class CheckedSettings:
    """Values by name, each made by `setting`. Values out of range are refused on construction."""

    def __post_init__(self) -> None:
        for name, field in _fields(type(self)).items():
            _check(field, getattr(self, name))

    @classmethod
    def names(cls) -> tuple[str, ...]:
        return tuple(_fields(cls))

    @classmethod
    def field(cls, name: str) -> dataclasses.Field[Any]:
        """Default and metadata of a setting; unknown names are refused with the nearest known ones."""
        fields = _fields(cls)
        if name not in fields:
            raise KclError(f"unknown setting {name!r}; {nearest(name, list(fields))}")
        return fields[name]

    @classmethod
    def parse(cls, name: str, text: str) -> Any:
        """The value of `--set name=text`, with its type and range checked."""
        field = cls.field(name)
        kind: type = type(field.default)
        try:
            value = _TRUTH_VALUES[text.lower()] if kind is bool else kind(text)
        except (ValueError, KeyError):
            raise KclError(_wrong_type(field, text)) from None
        _check(field, value)
        return value

    @classmethod
    def describe_range(cls, name: str) -> str:
        """What a setting accepts, in words."""
        return _range_in_words(cls.field(name))

    def replace(self, **changes: Any) -> Self:
        """A copy with some values changed; unknown names are refused with the nearest known ones."""
        for name in changes:
            self.field(name)
        return dataclasses.replace(self, **changes)

    def to_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self)


@dataclass(frozen=True)
class Settings(CheckedSettings):
    """The settings of one run that every method has."""

    backbone: str = setting("mlp", "network that turns inputs into features", choices=BACKBONES, since=2)
    feature_stages: int = setting(
        1, "last stages of a ResNet whose outputs are concatenated as features", 1, 4, since=3
    )
    width: int = setting(256, "units per hidden layer of the MLP", 1, 65_536)
    layers: int = setting(2, "hidden layers of the MLP", 1, 64)
    dropout: float = setting(
        0.5, "dropout rate of the backbone during training", 0.0, below=1.0, stackable=True, off_at_zero=True
    )
    batch_size: int = setting(10, "samples per step", 1, 1_000_000)
    epochs: int = setting(1, "passes over each task's training samples", 1, 10_000)
    lr: float = setting(0.1, "learning rate η of SGD", above=0.0, stackable=True)
    lr_decay: float = setting(
        0.8, "factor per task: task t (from 0) uses η · decay^(t + 1)", above=0.0, high=1.0, stackable=True
    )
    lr_floor: float = setting(5e-5, "lower bound of the learning rate", 0.0, stackable=True)
    momentum: float = setting(0.8, "momentum of SGD, reset at each task", 0.0, below=1.0, stackable=True)
    optimizer: str = setting("sgd", "optimiser", choices=OPTIMIZERS, since=3)
    muon_lr: float = setting(0.005, "learning rate of Muon at the first task", above=0.0, stackable=True, since=3)
    muon_lr_decay: float = setting(
        0.9, "factor per task: task t (from 0) uses muon_lr · decay^t", above=0.0, high=1.0, stackable=True, since=3
    )
    updates_per_batch: int = setting(1, "consecutive updates on each batch, each with its own noise", 1, 1000, since=3)
    augmentation: str = setting("none", "how training samples are varied", choices=AUGMENTATIONS, since=3)
    rotation_labels: bool = setting(False, "images in four rotations; classes become (class, rotation) pairs", since=3)
    weight_average: float = setting(
        0.0, "decay of the moving average of the weights that is used at test; 0: no average", 0.0, below=1.0,
        stackable=True, off_at_zero=True, at_test=True, since=3,
    )  # fmt: skip
    average_ramp: float = setting(
        9.0, "the average of the weights covers at most one in this many of all updates", above=0.0, high=1e6,
        stackable=True, at_test=True, since=3,
    )  # fmt: skip
    test_views: str = setting("plain", "views of a sample at test", choices=TEST_VIEWS, at_test=True, since=3)
    scenario: str = setting(
        "task", "what is known of a sample when a run is tested", choices=SCENARIOS, at_test=True, since=5
    )

    # What other parts ask of any method's settings

    @property
    def kernel_name(self) -> str | None:
        """The kernel, for labels and records, where the method has one."""
        return None

    @property
    def names_tasks(self) -> bool:
        """Whether the task of a sample is named when a run is tested."""
        return self.scenario == "task"

    @property
    def needs_batch_norm(self) -> bool:
        """Whether testing needs a backbone with BatchNorm."""
        return False

    @property
    def random_features(self) -> int:
        """Random features computed per query, for estimates of memory."""
        return 0

    # Which runs belong together

    @classmethod
    def names_at_test(cls) -> tuple[str, ...]:
        """The settings that act at test only: runs that differ in nothing else are trained once."""
        return tuple(name for name, field in _fields(cls).items() if field.metadata["at_test"])

    def stacking_key(self) -> tuple[Any, ...]:
        """Equal for runs that can be trained together: they differ in stackable numbers, and at test."""
        return self._key(at_test=False)

    def testing_key(self) -> tuple[Any, ...]:
        """Equal for runs that can be tested together: at test they differ in stackable numbers only."""
        return self._key(at_test=True)

    def _key(self, at_test: bool) -> tuple[Any, ...]:
        fields = [field for field in dataclasses.fields(self) if field.metadata["at_test"] == at_test]
        return tuple(
            getattr(self, field.name) > 0 if field.metadata["stackable"] else getattr(self, field.name)
            for field in fields
            if field.metadata["off_at_zero"] or not field.metadata["stackable"]
        )

    def as_trained(self) -> Self:
        """What training depends on: settings that act at test only are at their defaults."""
        defaults = self.replace(**{name: self.field(name).default for name in self.names_at_test()})
        return self if defaults == self else defaults


def _fields(settings_type: type[CheckedSettings]) -> dict[str, dataclasses.Field[Any]]:
    return {field.name: field for field in dataclasses.fields(settings_type)}


def nearest(name: str, known: list[str]) -> str:
    """The end of an error message: 'did you mean …?', or all known names."""
    close = meant(name, known) or difflib.get_close_matches(name, known, n=3, cutoff=0.55)
    close = close or [k for k in known if name and name in k][:3]
    return f"did you mean {' or '.join(close)}?" if close else f"known: {', '.join(known)}"


def meant(name: str, known: list[str]) -> list[str]:
    """The known name that is certainly meant, if any: the initials of the words, or the same in another spelling."""
    initials = "".join(word[:1] for word in name.split("_"))
    if initials != name and initials in known:  # learning_rate: lr
        return [initials]
    return difflib.get_close_matches(name, known, n=1, cutoff=0.85)


def _range_in_words(field: dataclasses.Field[Any]) -> str:
    limits, type_name = field.metadata, _TYPE_NAMES[type(field.default)]
    if limits["choices"]:
        return "one of " + ", ".join(limits["choices"])
    if limits["low"] is not None and limits["high"] is not None:
        return f"{type_name} from {limits['low']:,.10g} to {limits['high']:,.10g}"
    bounds = {"above": "above", "low": "of at least", "high": "at most", "below": "below"}
    words = " and ".join(f"{word} {limits[name]:,.10g}" for name, word in bounds.items() if limits[name] is not None)
    return f"{type_name} {words}".rstrip()


def _wrong_type(field: dataclasses.Field[Any], value: Any) -> str:
    type_name = _TYPE_NAMES[type(field.default)]
    return f"setting {field.name}: {value!r} is not {type_name}; expected {_range_in_words(field)}"


def _check(field: dataclasses.Field[Any], value: Any) -> None:
    """Refuse a value of another type or out of range."""
    kind, limits = type(field.default), field.metadata
    right_type = isinstance(value, kind) or (kind is float and isinstance(value, int))
    if not right_type or isinstance(value, bool) != (kind is bool):
        raise KclError(_wrong_type(field, value))
    if kind is str and value not in limits["choices"]:
        raise KclError(f"unknown {field.name} {value!r}; {nearest(value, list(limits['choices']))}")
    if kind in (bool, str):
        return
    finite = abs(value) <= sys.float_info.max  # false for nan, and for whole numbers no float can hold
    if not finite or not all(limits[name] is None or keeps(value, limits[name]) for name, keeps in _LIMITS.items()):
        raise KclError(f"setting {field.name}: {value} is out of range; expected {_range_in_words(field)}")
