"""The contribution of each ingredient of the strong recipe on Split CIFAR-100: removed from it, and alone."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from kcl.methods.recipes import published_settings
from kcl.methods.strong_recipe import strong_settings
from kcl.paper.cell import Cell
from kcl.paper.finished_runs import FinishedRuns
from kcl.paper.paper_figures import intervals, panels
from kcl.paper.paper_tables import COMMAND, SPREAD, TableColumn, cell_numbers, cell_table, paired_difference
from kcl.paper.run_cost import IMAGES_PER_SAMPLE
from kcl.paper.strong_results import LEARNED, STRONG_MEASURED, StrongItem
from kcl.report.published import CIFAR100

if TYPE_CHECKING:
    from matplotlib.figure import Figure

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


class Ablation(StrongItem):
    name = "strong-ablation"
    title = "Contribution of each ingredient of the strong recipe"
    note = (
        "Split CIFAR-100. Averaged weights, BatchNorm of the coreset, views and λ at test and the metric act only at "
        "test: without them, or with them alone, training is the same and can be shared. The bound on log-variances, "
        "which acts on VRF alone, prevents overflow and is not part of the ablation."
    )

    def cells(self) -> list[Cell]:
        return [*self.removed(), *self.alone()]

    def removed(self) -> list[Cell]:
        """The recipe, and the recipe without each ingredient."""
        paper = published_settings(CIFAR100, "kcl")
        return [
            Cell(WHOLE, CIFAR100, recipe="strong"),
            *(
                Cell(f"without {name}", CIFAR100, changes={s: getattr(paper, s) for s in settings}, recipe="strong")
                for name, settings in ingredients().items()
            ),
        ]

    def alone(self) -> list[Cell]:
        """The paper's recipe, and the paper's recipe with each ingredient."""
        strong = strong_settings(CIFAR100, "kcl")
        return [
            Cell(PAPER, CIFAR100),
            *(
                Cell(f"{name} alone", CIFAR100, changes={s: getattr(strong, s) for s in settings})
                for name, settings in ingredients().items()
            ),
        ]

    def columns(self) -> list[TableColumn]:
        recipes = {cell.recipe: cell for cell in (self.removed()[0], self.alone()[0])}
        difference = paired_difference("its recipe", lambda cell: recipes[cell.recipe])
        return [*STRONG_MEASURED, difference, IMAGES_PER_SAMPLE, COMMAND]

    def markdown(self, runs: FinishedRuns) -> str:
        note = (
            f"{SPREAD} {LEARNED} “vs. its recipe”: the mean of the paired differences in accuracy to the whole recipe, "
            "or to the paper's, over the seeds that both have, with its 95 % interval."
        )
        return f"{cell_table('', self.columns(), self.cells(), runs)}\n\n{note}\n"

    def rows(self, runs: FinishedRuns) -> list[dict[str, Any]]:
        return cell_numbers(self.columns(), self.cells(), runs)

    def figure(self, runs: FinishedRuns) -> Figure:
        names = list(ingredients())
        removed = dict(zip([WHOLE, *names], self.removed(), strict=True))
        alone = dict(zip([PAPER, *names], self.alone(), strict=True))
        contents = {"left out of the recipe": removed, "alone, on top of the paper's": alone}
        return panels(
            [(title, partial(intervals, cells=cells, runs=runs)) for title, cells in contents.items()], runs, width=4.8
        )
