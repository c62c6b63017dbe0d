"""What each ingredient of the strong recipe is worth on Split CIFAR-100: left out of it, and alone on the paper's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from kcl.methods.recipes import published_settings
from kcl.methods.strong_recipe import strong_settings
from kcl.paper import paper_tables
from kcl.paper.cell import CIFAR100, Cell
from kcl.paper.item import Found, Item
from kcl.paper.paper_figures import intervals, panels
from kcl.paper.reproducibility import command
from kcl.paper.run_cost import cost_of
from kcl.paper.strong_results import LEARNED, MEASURED, WITHOUT_IMAGES, asked, measured

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
"""By name, the settings that are one ingredient."""
GUARDS = ("log_variance_bound",)
"""Against overflow, and not for accuracy: not taken apart."""
WHOLE, PAPER = "the whole recipe", "the paper's recipe"


def ingredients() -> dict[str, tuple[str, ...]]:
    """Those by which the recipe for Split CIFAR-100 differs from the paper's."""
    strong, paper = strong_settings(CIFAR100, "kcl"), published_settings(CIFAR100, "kcl")
    return {
        name: settings
        for name, settings in INGREDIENTS.items()
        if any(getattr(strong, setting) != getattr(paper, setting) for setting in settings)
    }


class Ablation(Item):
    name = "strong-ablation"
    place = "Past the paper (docs/strong.md)"
    title = "What each ingredient of the strong recipe is worth"
    judged = False
    note = (
        "Split CIFAR-100. Averaged weights, BatchNorm of the coreset, views and λ at test and the metric act at test "
        "only: without them, or with them alone, training is the same, and can be done once. The bound on "
        "log-variances, which acts on VRF alone, guards against overflow and is not taken apart."
    )
    miniature = WITHOUT_IMAGES

    def cells(self) -> list[Cell]:
        return [*self.left_out(), *self.alone()]

    def left_out(self) -> list[Cell]:
        """The recipe, and the recipe without each ingredient."""
        return [Cell(WHOLE, CIFAR100, recipe="strong"), *self._each("strong", "paper", "without {}")]

    def alone(self) -> list[Cell]:
        """The paper's recipe, and each ingredient on top of it."""
        return [Cell(PAPER, CIFAR100), *self._each("paper", "strong", "{} alone")]

    def _each(self, recipe: str, other: str, row: str) -> list[Cell]:
        """Cells of a recipe in which one ingredient is the other's."""
        values = {"paper": published_settings(CIFAR100, "kcl"), "strong": strong_settings(CIFAR100, "kcl")}
        return [
            Cell(
                row.format(name),
                CIFAR100,
                changes={
                    setting: getattr(values[other], setting)
                    for setting in settings
                    if getattr(values["strong"], setting) != getattr(values["paper"], setting)
                },
                recipe=recipe,
            )
            for name, settings in ingredients().items()
        ]

    def markdown(self, found: Found) -> str:
        header = ("", *MEASURED, "beside", "images a sample", "command")
        ruler = ("---", *["---:"] * (len(header) - 2), "---")
        lines = [*_lines(self.left_out(), found), *_lines(self.alone(), found)]
        note = (
            f"{paper_tables.SPREAD} {LEARNED} Beside: the mean of the paired differences to the whole recipe, or to "
            "the paper's, over the seeds both have, with its 95 % interval."
        )
        return "\n".join([*map(paper_tables.row, [header, ruler, *lines]), "", note, ""])

    def rows(self, found: Found) -> list[dict[str, Any]]:
        made = []
        for cells, base in ((self.left_out(), WHOLE), (self.alone(), PAPER)):
            for cell, row in zip(cells, paper_tables.rows(cells, found, base), strict=True):
                renamed = {name.replace(base, "its recipe"): value for name, value in row.items()}
                own = {name: value for name, value in renamed.items() if "paper" not in name}
                group, cost = found.group(cell), cost_of(cell, found)
                own |= paper_tables.numbers("just learned", group.summary("learning_accuracy") if group else None)
                own["images a sample"] = cost.images_per_sample if cost else None
                made.append(own | {"command": None if found.scale.note else command(cell, found)})
        return made

    def figure(self, found: Found) -> Figure:
        names = list(ingredients())
        left_out = dict(zip([WHOLE, *names], self.left_out(), strict=True))
        alone = dict(zip([PAPER, *names], self.alone(), strict=True))
        return panels(
            [
                ("left out of the recipe", intervals(left_out, found)),
                ("alone, on top of the paper's", intervals(alone, found)),
            ],
            found,
            width=4.8,
        )


def _lines(cells: Sequence[Cell], found: Found) -> list[tuple[str, ...]]:
    lines = []
    for cell in cells:
        beside = None if cell is cells[0] else paper_tables.paired(cell, cells[0], found)
        cost = cost_of(cell, found)
        lines.append(
            (
                cell.row,
                *measured(cell, found),
                paper_tables.MISSING if beside is None else f"{beside.mean:+.2f}{paper_tables.width(beside)}",
                f"{cost.images_per_sample:.2f}" if cost else paper_tables.MISSING,
                asked(cell, found),
            )
        )
    return lines
