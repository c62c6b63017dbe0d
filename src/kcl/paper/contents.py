"""The paper's tables and figures by name, in its order, and what goes past it."""

from __future__ import annotations

from kcl.core.settings import nearest
from kcl.errors import KclError
from kcl.paper.ablation import Ablation
from kcl.paper.accuracy_curves import AllMethods, FirstTasks, NumberOfTasks
from kcl.paper.average_horizon import Reach
from kcl.paper.bases import Bases
from kcl.paper.comparison import Comparison
from kcl.paper.coreset_size import CoresetSize
from kcl.paper.hyperparameters import Hyperparameters
from kcl.paper.inference_time import InferenceTime
from kcl.paper.item import Item
from kcl.paper.kernel_table import Kernels
from kcl.paper.memory_benefit import MemoryBenefit
from kcl.paper.strong_cost import StrongCost
from kcl.paper.strong_results import StrongResults
from kcl.paper.varied_ways import VariedWays

ITEMS: dict[str, Item] = {
    item.name: item
    for item in (
        FirstTasks(),
        Kernels(),
        VariedWays(),
        NumberOfTasks(),
        MemoryBenefit(),
        CoresetSize(),
        Bases(),
        InferenceTime(),
        AllMethods(),
        Comparison(),
        Hyperparameters(),
    )
}


STRONG: dict[str, Item] = {item.name: item for item in (StrongResults(), Reach(), Ablation(), StrongCost())}
"""Past the paper, in the order in which their runs are done: what matters most first."""

GROUPS = {"all": ITEMS, "strong": STRONG}
"""Names for several: `all` is what the paper has, and no more."""


def find_items(names: list[str]) -> list[Item]:
    """The items named; `all` for all of the paper's, `strong` for all past it."""
    known = ITEMS | STRONG
    if not names:
        raise KclError(f"say what to reproduce: all, or some of {', '.join(ITEMS)}; or, past the paper, strong")
    for name in names:
        if name not in known and name not in GROUPS:
            raise KclError(f"unknown table or figure {name!r}; {nearest(name, [*GROUPS, *known])}")
    return [known[own] for own in dict.fromkeys(own for name in names for own in GROUPS.get(name, {name: None}))]
