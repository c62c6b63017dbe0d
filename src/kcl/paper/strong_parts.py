"""The parts of the strong recipe: the contribution of each ingredient, and how far back averaged weights reach."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from kcl.core.settings import Settings
from kcl.methods.recipes import published_settings
from kcl.methods.strong_recipe import strong_settings
from kcl.paper.cell import Cell, FinishedRuns
from kcl.paper.columns import COMMAND, IMAGES_PER_SAMPLE, Column, paired_difference
from kcl.paper.item import Part
from kcl.paper.panels import MEASURES, intervals, sweep
from kcl.paper.strong_results import LAST, LEARNED, STRONG_MEASURED, StrongTables
from kcl.report.figures import Panel
from kcl.report.published import BENCHMARK_TITLES, CIFAR100, MINIIMAGENET

INGREDIENTS = {
    "rotation labels": ("rotation_labels",),
    "Muon and its rates": ("optimizer", "muon_lr", "muon_lr_decay", "lr", "lr_decay", "momentum"),
    "averaged weights": ("weight_average", "average_ramp"),
    "BatchNorm of the coreset": ("batch_norm",),
    "views at test": ("test_views",),
    "mirror images while training": ("augmentation",),
    "several updates per batch": ("updates_per_batch",),
    "learned targets": ("soft_targets",),
    "λ at test": ("test_strength",),
    "the metric of all coresets": ("shared_metric",),
    "features of several stages": ("feature_stages",),
    "warm start": ("warm_start",),
    "the linear kernel": ("kernel",),
    "dropout": ("dropout",),
}
"""The settings of each ingredient, by its name."""
GUARDS = ("log_variance_bound",)
"""Settings that prevent overflow and do not aim at accuracy: not part of the ablation."""
WHOLE, PAPER = "the whole recipe", "the paper's recipe"


def ingredients() -> dict[str, tuple[str, ...]]:
    """The settings by which the strong recipe differs from the paper's on Split CIFAR-100, by ingredient."""
    strong, paper = strong_settings(CIFAR100, "kcl"), published_settings(CIFAR100, "kcl")
    differing = {
        name: tuple(setting for setting in settings if getattr(strong, setting) != getattr(paper, setting))
        for name, settings in INGREDIENTS.items()
    }
    return {name: settings for name, settings in differing.items() if settings}


def _varied(recipe: str, whole: str, row: str, other: Settings) -> list[Cell]:
    """A recipe, and the recipe with another's settings of one ingredient after another."""
    cells = [Cell(whole, CIFAR100, recipe=recipe)]
    for ingredient, names in ingredients().items():
        changes = {name: getattr(other, name) for name in names}
        cells.append(Cell(row.format(ingredient), CIFAR100, changes=changes, recipe=recipe))
    return cells


class Ablation(StrongTables):
    name = "strong-ablation"
    title = "Contribution of each ingredient of the strong recipe"
    note = (
        "Split CIFAR-100. Averaged weights, BatchNorm of the coreset, views and λ at test and the metric act only at "
        "test: without them, or with them alone, training is the same and can be shared. The bound on log-variances, "
        "which acts on VRF alone, prevents overflow and is not part of the ablation."
    )
    legend = (
        f"{LEARNED} “vs. its recipe”: the mean of the paired differences in accuracy to the whole recipe, "
        "or to the paper's, over the seeds that both have, with its 95 % interval."
    )
    row_heading = ""
    panel_width = 4.8

    def cells(self) -> list[Cell]:
        return [*self.removed(), *self.alone()]

    def removed(self) -> list[Cell]:
        """The recipe, and the recipe without each ingredient."""
        return _varied("strong", WHOLE, "without {}", published_settings(CIFAR100, "kcl"))

    def alone(self) -> list[Cell]:
        """The paper's recipe, and the paper's recipe with each ingredient."""
        return _varied("paper", PAPER, "{} alone", strong_settings(CIFAR100, "kcl"))

    def columns(self) -> Sequence[Column]:
        difference = paired_difference("its recipe", (self.removed()[0], self.alone()[0]))
        return (*STRONG_MEASURED, difference, IMAGES_PER_SAMPLE, COMMAND)

    shown_columns = columns

    def parts(self, runs: FinishedRuns) -> list[Part]:  # noqa: ARG002
        return [Part(self.cells())]

    def panels(self, runs: FinishedRuns) -> list[Panel]:
        contents = {
            "left out of the recipe": zip([WHOLE, *ingredients()], self.removed(), strict=True),
            "alone, on top of the paper's": zip([PAPER, *ingredients()], self.alone(), strict=True),
        }
        return [(title, partial(intervals, cells=dict(cells), runs=runs)) for title, cells in contents.items()]


RAMPS = {CIFAR100: (1.0, 2.0, 3.0, 5.0, 9.0), MINIIMAGENET: (1.0, 1.25, 2.0, 3.0, 5.0, 9.0)}
RAMPS_WITH_METRIC = {CIFAR100: (2.0,), MINIIMAGENET: (1.0, 1.25, 2.0)}
"""With the metric of all coresets, which was added later: the recipe's, and on Split miniImageNet its neighbours."""


class StrongHorizon(StrongTables):
    name = "strong-reach"
    title = "How far back averaged weights reach"
    note = (
        "The strong recipe with other values of `average_ramp`, r: weights are averaged over about one in r of all "
        "updates so far; with r = 1 over all of them equally. It acts only at test: rows of a benchmark that are "
        "requested together share one training and are tested separately. Without the metric of all coresets, which "
        "was added later, unless the row says so."
    )
    panels_in_row = len(MEASURES)
    benchmarks = tuple(RAMPS)

    def rows_of(self, benchmark: str) -> list[Cell]:
        paper = published_settings(benchmark, "kcl")
        last = {"weight_average": paper.weight_average, "average_ramp": paper.average_ramp, "shared_metric": 0.0}
        without, with_metric = self.lines(benchmark).values()
        return [*without.values(), Cell(LAST, benchmark, changes=last, recipe="strong"), *with_metric.values()]

    def lines(self, benchmark: str) -> dict[str, dict[float, Cell]]:
        """By `average_ramp`, without and with the metric."""
        with_metric = sorted({*RAMPS_WITH_METRIC[benchmark], strong_settings(benchmark, "kcl").average_ramp})

        def cell(ramp: float, row: str, **changes: float) -> Cell:
            return Cell(row, benchmark, changes={"average_ramp": ramp, **changes}, recipe="strong")

        return {
            "without the metric": {ramp: cell(ramp, f"r = {ramp:g}", shared_metric=0.0) for ramp in RAMPS[benchmark]},
            "with it": {ramp: cell(ramp, f"r = {ramp:g}, with the metric") for ramp in with_metric},
        }

    def shown_columns(self) -> Sequence[Column]:
        return (*STRONG_MEASURED, COMMAND)

    def parts(self, runs: FinishedRuns) -> list[Part]:
        parts = []
        for benchmark in RAMPS:
            recipe = {"average_ramp": strong_settings(benchmark, "kcl").average_ramp}
            cells = [
                replace(cell, row=f"**{cell.row}** (the recipe)") if cell.changes == recipe else cell
                for cell in self.rows_of(benchmark)
            ]
            parts.append(Part(cells, row_heading=f"{BENCHMARK_TITLES[benchmark]}{runs.scale.suffix}"))
        return parts

    def panels(self, runs: FinishedRuns) -> list[Panel]:
        draw = partial(sweep, runs=runs, xlabel="average_ramp")
        return [
            (BENCHMARK_TITLES[benchmark], partial(draw, lines=self.lines(benchmark), measure=measure))
            for benchmark in RAMPS
            for measure in MEASURES
        ]
