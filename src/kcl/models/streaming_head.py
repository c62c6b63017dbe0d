"""A kernel ridge classifier that keeps sums instead of samples, for features that do not change.

`Features` is ψ: fixed by a seed, so that models made apart can be added up. `StreamingHead` keeps the statistics of ψ
and the targets (`functional.statistics`) per task, or per task and class, and solves them when a prediction is needed:
for a named task from its own statistics, otherwise from those of all tasks, where equal labels are one class.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from kcl.core.randomness import numpy_generator
from kcl.core.settings import nearest
from kcl.core.shapes import Float, Int
from kcl.errors import KclError
from kcl.functional import statistics
from kcl.functional.statistics import STRENGTH_RULES, SecondMoment, Statistics, add_moments
from kcl.methods.feature_maps import FEATURE_MAPS, Buffers, NystroemMap

KEPT = ("task", "class")
WHOLE = -1
"""The class of a unit of statistics that holds all classes of its task."""
TEMPERATURE_EXPONENT = 0.4
"""Softmax temperature = residual variance / classes^0.4. Chosen on held-out training samples of CLINC150, Banking77 and
scikit-learn's tables, where it came within 0.04 of the calibration error of a fitted temperature."""
LEAST_TEMPERATURE = 1e-3
ROUNDING = 1e-9
"""What rounding may leave of a difference, relative to what it was taken from."""
Unit = tuple[str, int]
"""A task, and one of its classes or `WHOLE`."""


@dataclass(frozen=True)
class Features:
    """ψ of a model: a feature map with its tensors. Inputs are divided by their length if `unit_length`, then by
    `width`.
    """

    kind: str
    inputs: int
    bases: int
    width: float
    unit_length: bool
    seed: int
    buffers: Buffers

    @classmethod
    def make(
        cls,
        kind: str,
        inputs: int,
        bases: int,
        width: float = 1.0,
        unit_length: bool = False,
        seed: int = 0,
        landmarks: Float[Tensor, "m d"] | None = None,
    ) -> Features:
        """`landmarks`: for "nystroem", scaled like the inputs."""
        if kind not in FEATURE_MAPS:
            raise KclError(f"unknown features {kind!r}; {nearest(kind, list(FEATURE_MAPS))}")
        if bases < 1 or not width > 0.0:
            raise KclError(f"features need at least one base and a positive width, not {bases} and {width}")
        if (kind == "nystroem") != (landmarks is not None):
            raise KclError("landmarks belong to features 'nystroem', which need them")
        unplaced = cls(kind, inputs, bases, width, unit_length, seed, {})
        if landmarks is not None:
            buffers = NystroemMap.of_landmarks(unplaced.scaled(landmarks))
        else:
            buffers = FEATURE_MAPS[kind].draw(inputs, bases, numpy_generator(seed, f"features {kind}"))
        return cls(kind, inputs, bases, width, unit_length, seed, buffers)

    def scaled(self, x: Float[Tensor, "n ..."]) -> Float[Tensor, "n d"]:
        """What the map is applied to. Every sample is scaled alone, in float64, so that portions do not matter."""
        flat = x.flatten(1).double()
        if self.unit_length:
            flat = flat / torch.linalg.vector_norm(flat, dim=1, keepdim=True).clamp_min(1e-12)
        return flat / self.width

    def __call__(self, x: Float[Tensor, "n ..."]) -> Float[Tensor, "n D"]:
        return FEATURE_MAPS[self.kind].apply(self.scaled(x), self.buffers)

    def to(self, device: torch.device) -> Features:
        buffers = {name: tensor.to(device) for name, tensor in self.buffers.items()}
        return Features(self.kind, self.inputs, self.bases, self.width, self.unit_length, self.seed, buffers)

    @property
    def dimension(self) -> int:
        return self(torch.zeros(1, self.inputs, device=next(iter(self.buffers.values()), torch.empty(0)).device)).shape[
            1
        ]

    def identity(self) -> dict[str, Any]:
        """Models with the same identity can be added up."""
        digest = hashlib.sha256()
        for name in sorted(self.buffers):
            digest.update(name.encode() + self.buffers[name].cpu().contiguous().numpy().tobytes())
        return {
            "kind": self.kind,
            "inputs": self.inputs,
            "bases": self.bases,
            "width": self.width,
            "unit_length": self.unit_length,
            "seed": self.seed,
            "sha256": digest.hexdigest(),
        }


class Solution(NamedTuple):
    """A solved classifier over c outputs."""

    weights: Float[Tensor, "D c"]
    spectrum: statistics.Spectrum
    strength: float
    temperature: float

    def variance(self, features: Float[Tensor, "n D"]) -> Float[Tensor, " n"]:
        return statistics.variance(self.spectrum, self.strength, features)


class StreamingHead:
    """The statistics of all tasks, and classifiers solved from them when needed.

    `keep` says what can be forgotten without its samples: "task", or "class", which takes more memory and lets classes
    weigh the same (`balanced`). `strength` fixes λ, relative to the mean of ‖ψ‖²; by default `rule` chooses it anew
    whenever something was learned.
    """

    def __init__(
        self,
        features: Features,
        keep: str = "task",
        rule: str = "evidence",
        strength: float | None = None,
        balanced: bool = False,
    ) -> None:
        if keep not in KEPT:
            raise KclError(f"unknown keep {keep!r}; {nearest(keep, list(KEPT))}")
        if rule not in STRENGTH_RULES:
            raise KclError(f"unknown rule for λ {rule!r}; {nearest(rule, list(STRENGTH_RULES))}")
        if strength is not None and not strength > 0.0:
            raise KclError(f"the ridge strength must be positive, not {strength}")
        if balanced and keep != "class":
            raise KclError("balanced classes need their statistics apart: keep='class'")
        self.features, self.keep, self.rule, self.strength, self.balanced = features, keep, rule, strength, balanced
        self.units: dict[Unit, Statistics] = {}
        self._moment: SecondMoment | None = None
        self._solutions: dict[str | None, Solution] = {}

    # Learning and forgetting

    def learn(
        self,
        task: str,
        features: Float[Tensor, "n D"],
        labels: Int[Tensor, " n"],
        classes: int,
        weights: Float[Tensor, " n"] | None = None,
    ) -> None:
        """Add samples of a task that has `classes` classes by now."""
        parts = self._parts(task, features, labels, classes, weights)
        moments = [part.moment for part in parts.values()]
        self._moment = add_moments(moments if self._moment is None else [self._moment, *moments])
        self.units = add_units([self.units, parts])
        self._solutions = {}

    def replace_units(self, units: dict[Unit, Statistics]) -> None:
        """Go on with these statistics. Their sum is taken anew, so that nothing of the former ones is left in it."""
        self.units, self._solutions = units, {}
        self._moment = add_moments([part.moment for part in units.values()]) if units else None

    def without_samples(
        self,
        task: str,
        features: Float[Tensor, "n D"],
        labels: Int[Tensor, " n"],
        classes: int,
        weights: Float[Tensor, " n"] | None = None,
    ) -> dict[Unit, Statistics]:
        """The statistics without samples that were learned before. Raises if they cannot contain them."""
        units = dict(self.units)
        for unit, part in self._parts(task, features, labels, classes, weights).items():
            whole = units.get(unit)
            rest = None if whole is None else statistics.subtract(whole, part)
            if whole is None or rest is None or not _possible(whole, rest):
                raise KclError("these samples are not among those that were learned, so they cannot be forgotten")
            if rest.count > ROUNDING * whole.count:
                units[unit] = rest
            else:
                del units[unit]
        return units

    def _parts(
        self, task: str, features: Tensor, labels: Tensor, classes: int, weights: Tensor | None
    ) -> dict[Unit, Statistics]:
        if self.keep == "task":
            return {(task, WHOLE): statistics.of_samples(features, F.one_hot(labels, classes), weights)}
        parts = {}
        for label in labels.unique().tolist():
            rows = labels == label
            ones = torch.ones(int(rows.sum()), 1, dtype=torch.float64, device=features.device)
            part_weights = None if weights is None else weights[rows]
            parts[task, label] = statistics.of_samples(features[rows], ones, part_weights)
        return parts

    # Answering

    def solution(self, places: Mapping[str, Sequence[int]], task: str | None = None) -> Solution:
        """The classifier of a task, or over all classes. `places`: for every task, the place of each of its classes
        among all classes.
        """
        if task not in self._solutions:
            self._solutions[task] = self._solve(places, task)
        return self._solutions[task]

    def _solve(self, places: Mapping[str, Sequence[int]], task: str | None) -> Solution:
        units, moment = self.units, self._moment
        if task is not None:
            places = {task: range(len(places[task]))}
            units, moment = {unit: part for unit, part in units.items() if unit[0] == task}, None
        outputs = 1 + max(max(several) for several in places.values())
        parts = [
            part.placed([places[name][label]] if label != WHOLE else places[name][: part.targets], outputs)
            for (name, label), part in units.items()
        ]
        if self.balanced:
            counts = statistics.add(parts).sums
            mean = float(counts.sum()) / int((counts > 0).sum())
            parts = [part.scaled(mean / float(counts[part.sums > 0])) for part in parts]
            moment = None
        joined = statistics.add(parts, moment)
        spectrum = statistics.spectrum(joined)
        fixed = self.strength
        strength = statistics.best_strength(spectrum, self.rule) if fixed is None else fixed * spectrum.scale
        residual = statistics.generalised_cross_validation(spectrum, strength) / joined.count
        temperature = max(min(residual, 1.0) / outputs**TEMPERATURE_EXPONENT, LEAST_TEMPERATURE)
        return Solution(statistics.weights(spectrum, strength), spectrum, strength, temperature)


def add_units(several: Sequence[Mapping[Unit, Statistics]]) -> dict[Unit, Statistics]:
    """The statistics of samples that were learned apart, with classes at the same places."""
    parts: dict[Unit, list[Statistics]] = {}
    for units in several:
        for unit, part in units.items():
            parts.setdefault(unit, []).append(part)
    return {unit: statistics.add(of_unit) for unit, of_unit in parts.items()}


def _possible(whole: Statistics, rest: Statistics) -> bool:
    """Whether a difference can be the statistics of samples: no negative counts, no negative eigenvalues."""
    least = float(torch.linalg.eigvalsh(rest.moment.dense())[0])
    return min(rest.count, float(rest.sums.min())) > -ROUNDING * whole.count and least > -ROUNDING * whole.moment.trace
