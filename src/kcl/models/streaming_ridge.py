"""Kernel ridge regression that keeps sums instead of samples, for features that do not change.

It keeps the statistics of ψ and the targets (`functional.statistics`) per task, or per task and class, and solves them
when a prediction is needed: for a named task from its own statistics, otherwise from those of all tasks, where equal
labels are one class. Targets may also be numbers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from kcl.core.shapes import Bool, Float, Int
from kcl.errors import KclError
from kcl.functional import primal, statistics
from kcl.functional.primal import STRENGTH_RULES
from kcl.functional.statistics import SecondMoment, Statistics, TargetScale, add_moments
from kcl.models.calibration import usual_temperature
from kcl.models.features import Features

if TYPE_CHECKING:
    from kcl.models.streaming_heads import StreamingSettings  # which names what is kept, and the rules

KEPT = ("task", "class")
HELD_OUT = "held-out"
RULES = (*STRENGTH_RULES, HELD_OUT)
"""How λ is chosen: from the sums of all samples, or by the error on samples whose sums are kept apart."""
WHOLE = -1
"""The class of a unit of statistics that holds all classes of its task."""
ROUNDING = 1e-9
"""What rounding may leave of a difference, relative to what it was taken from."""


class Unit(NamedTuple):
    """Samples that are summed up together: no sample is in two units."""

    task: str
    label: int
    """The place of a class among those of its task, or `WHOLE`."""
    held_out: bool = False
    """Whether they choose λ, with the rule `HELD_OUT`. They are learned like all others."""


Units = dict[Unit, Statistics]


@dataclass(frozen=True)
class Solution:
    """A solved classifier, or regression, with c outputs."""

    weights: Float[Tensor, "D c"]
    spectrum: primal.Decomposition
    strength: float
    temperature: float
    counts: Float[Tensor, " c"]
    """The weight of each class's samples."""
    mean: Float[Tensor, " c"] | None = None
    """Of targets that are numbers: to be added to ψW."""

    def variance(self, features: Float[Tensor, "n D"]) -> Float[Tensor, " n"]:
        return primal.variance(self.spectrum, self.strength, features)

    def distances(self, responses: Float[Tensor, "n c"], variance: Float[Tensor, " n"]) -> Float[Tensor, "n c"]:
        """Mahalanobis distances of ψ to the class means, by its responses ψW and their variance."""
        return primal.class_distances(self._residual_root, self.strength, self.counts, responses, variance)

    @cached_property
    def _residual_root(self) -> Float[Tensor, "c c"]:
        return primal.residual_root(self.spectrum, self.strength, self.counts)


class StreamingRidge:
    """The statistics of all tasks, and classifiers solved from them when needed.

    `numbers`: targets are numbers with a last one that is 1, instead of classes.
    """

    def __init__(self, features: Features, settings: StreamingSettings, numbers: bool = False) -> None:
        if settings.balanced and settings.keep != "class":
            raise KclError("balanced needs keep='class', which keeps the statistics of each class apart")
        self.features, self.settings, self.numbers = features, settings, numbers
        self.units: Units = {}
        self.moment: SecondMoment | None = None
        """The sum of the second moments of all units."""
        self.classifiers: dict[str | None, Any] = {}
        """Those made of these statistics, by task, or None for all classes. Every change begins a new table, because
        other threads may be reading the old one."""

    # Learning and forgetting

    def learn(self, parts: Units) -> None:
        """Add the statistics of samples."""
        units = add_units([self.units, parts])
        moments = [part.moment for part in parts.values()]
        several = moments if self.moment is None else [self.moment, *moments]
        self.install(units, next(iter(units.values())).moment if len(units) == 1 else add_moments(several))

    def install(self, units: Units, moment: SecondMoment | None = None) -> None:
        """Go on with these statistics. Without `moment`, their sum is taken anew, so that nothing of former ones is
        left in it.
        """
        self.units, self.classifiers = units, {}
        self.moment = moment or (add_moments([part.moment for part in units.values()]) if units else None)

    def without(self, parts: Units) -> Units:
        """The statistics without those of samples that were learned before. Raises if they cannot contain them."""
        left = {unit: whole for unit, whole in self.units.items() if parts.get(unit) is not whole}
        for unit, part in parts.items():
            whole = self.units.get(unit)
            if part is whole:
                continue
            rest = None if whole is None else statistics.subtract(whole, part)
            if whole is None or rest is None or not _possible(whole, rest):
                raise KclError("these samples are not among those that were learned, so they cannot be forgotten")
            left[unit] = rest
        return {unit: rest for unit, rest in left.items() if rest.count > ROUNDING * self.units[unit].count}

    def parts(
        self,
        task: str,
        features: Float[Tensor, "n D"],
        targets: Int[Tensor, " n"] | Float[Tensor, "n c"],
        classes: int,
        weights: Float[Tensor, " n"] | None = None,
        held_out: Bool[Tensor, " n"] | None = None,
    ) -> Units:
        """The statistics of samples of a task that has `classes` classes, or targets, by now. `targets`: the class of
        each, or numbers. `held_out`: which choose λ, with the rule `HELD_OUT`.
        """
        everything = torch.ones(len(features), dtype=torch.bool, device=features.device)
        of_label = {WHOLE: everything}
        if self.settings.keep == "class":
            of_label = {label: targets == label for label in targets.unique().tolist()}
            targets = torch.ones(len(targets), 1, dtype=torch.float64, device=features.device)
        elif not self.numbers:
            targets = F.one_hot(targets, classes)
        of_held_out = {False: everything} if held_out is None else {False: ~held_out, True: held_out}
        parts: Units = {}
        for held, of_held in of_held_out.items():
            for label, of_class in of_label.items():
                if bool((rows := of_held & of_class).any()):
                    part = None if weights is None else weights[rows]
                    parts[Unit(task, label, held)] = statistics.of_samples(features[rows], targets[rows], part)
        return parts

    # Answering

    def solution(self, places: Mapping[str, Sequence[int]], task: str | None = None) -> Solution:
        """The classifier of a task, or over all classes. `places`: for every task, the place of each of its classes
        among all classes.
        """
        units, moment = self.units, self.moment
        if task is not None:
            places = {task: range(len(places[task]))}
            units, moment = {unit: part for unit, part in units.items() if unit.task == task}, None
        outputs = 1 + max(max(several) for several in places.values())
        if self.settings.balanced:
            units, moment = _balanced(units, places), None
        whole = joined(units, places, moment, outputs)
        scale = TargetScale.of(whole) if self.numbers else None  # with which every target counts the same, choosing λ
        spectrum = primal.decompose(whole if scale is None else scale.apply(whole))
        strength = self.best_strength(spectrum, units, places, scale)
        weights = primal.weights(spectrum, strength)
        if scale is not None:
            return Solution(weights * scale.deviation, spectrum, strength, 1.0, whole.sums[:-1], scale.mean)
        residual = primal.generalised_cross_validation(spectrum, strength) / whole.count
        return Solution(weights, spectrum, strength, usual_temperature(residual, outputs), whole.sums)

    def best_strength(
        self,
        spectrum: primal.Decomposition,
        units: Units,
        places: Mapping[str, Sequence[int]],
        scale: TargetScale | None = None,
    ) -> float:
        """λ for the units whose spectrum this is. Where none or all of them are held out, by the evidence."""
        if self.settings.ridge_strength:
            return self.settings.ridge_strength * spectrum.scale
        if self.settings.strength_rule != HELD_OUT:
            return primal.best_strength(spectrum, self.settings.strength_rule)
        apart = [{unit: part for unit, part in units.items() if unit.held_out == held} for held in (False, True)]
        if not all(apart):
            return primal.best_strength(spectrum)
        outputs = spectrum.targets + (scale is not None)
        learned, held = (joined(part, places, None, outputs) for part in apart)
        if scale is not None:
            learned, held = scale.apply(learned), scale.apply(held)
        return primal.held_out_strength(primal.decompose(learned), held)

    def weights_apart(
        self, solution: Solution, places: Mapping[str, Sequence[int]], apart: Mapping[str, Sequence[int]]
    ) -> Float[Tensor, "D p"]:
        """The columns of the solution over all classes, told apart by task: those of equal labels add up to that of the
        label.
        `places`: those of the solution; `apart`: the place of each class of each task among all pairs.
        """
        units = _balanced(self.units, places) if self.settings.balanced else self.units
        return primal.weights(solution.spectrum, solution.strength, joined(units, apart, self.moment).cross)


def joined(
    units: Units,
    places: Mapping[str, Sequence[int]],
    moment: SecondMoment | None = None,
    outputs: int | None = None,
) -> Statistics:
    """The statistics of all units together. `places`: for every task, the place of each of its classes among `outputs`.
    `moment`: the sum of the second moments, if it is known.
    """
    outputs = 1 + max(max(several) for several in places.values()) if outputs is None else outputs
    placed = []
    for unit, part in units.items():
        of_task = places[unit.task]
        placed.append((part, of_task[: part.targets] if unit.label == WHOLE else [of_task[unit.label]]))
    return statistics.add_placed(placed, outputs, moment)


def _balanced(units: Units, places: Mapping[str, Sequence[int]]) -> Units:
    """The same statistics of classes, weighted so that all classes together count the same."""
    counts: dict[int, float] = {}
    of_unit = {unit: places[unit.task][unit.label] for unit in units}
    for unit, part in units.items():
        counts[of_unit[unit]] = counts.get(of_unit[unit], 0.0) + part.count
    mean = sum(counts.values()) / len(counts)
    return {unit: part.scaled(mean / counts[of_unit[unit]]) for unit, part in units.items()}


def add_units(several: Sequence[Mapping[Unit, Statistics]]) -> Units:
    """The statistics of samples that were learned apart, with classes at the same places."""
    parts: dict[Unit, list[Statistics]] = {}
    for units in several:
        for unit, part in units.items():
            parts.setdefault(unit, []).append(part)
    return {unit: statistics.add(of_unit) if len(of_unit) > 1 else of_unit[0] for unit, of_unit in parts.items()}


def _possible(whole: Statistics, rest: Statistics) -> bool:
    """Whether a difference can be the statistics of samples: no negative counts, squares or eigenvalues."""
    least = float(torch.linalg.eigvalsh(rest.moment.dense(), UPLO="U")[0])
    counted = rest.count > -ROUNDING * whole.count and bool((rest.squares >= -ROUNDING * whole.squares).all())
    return counted and least > -ROUNDING * whole.moment.trace
