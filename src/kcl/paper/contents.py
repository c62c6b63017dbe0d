"""The tables and figures by name: the paper's in its order, then those beyond the paper.

A new one is a class in a file of its own, or beside its kind, and one line here.
"""

from __future__ import annotations

from kcl.core.settings import nearest
from kcl.errors import KclError
from kcl.paper.inference_time import InferenceTime
from kcl.paper.item import Item
from kcl.paper.paper_figures import AllMethods, Bases, CoresetSize, FirstTasks, MemoryBenefit, NumberOfTasks
from kcl.paper.paper_tables import Comparison, Hyperparameters, Kernels, VariedWays
from kcl.paper.strong_parts import Ablation, AverageHorizon
from kcl.paper.strong_results import StrongCost, StrongResults

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
STRONG: dict[str, Item] = {item.name: item for item in (StrongResults(), AverageHorizon(), Ablation(), StrongCost())}
"""Beyond the paper, in the order in which their runs are done: the most important first."""
GROUPS = {"all": ITEMS, "strong": STRONG}
"""Names for several items: `all` is the paper's, and no more."""


def find_items(names: list[str]) -> list[Item]:
    """The named items, each once; `all` stands for the paper's, `strong` for those beyond it."""
    known = ITEMS | STRONG
    if not names:
        raise KclError(f"name what to reproduce: all, or some of {', '.join(ITEMS)}; or, beyond the paper, strong")
    for name in names:
        if name not in known and name not in GROUPS:
            raise KclError(f"unknown table or figure {name!r}; {nearest(name, [*GROUPS, *known])}")
    return [known[key] for key in dict.fromkeys(key for name in names for key in GROUPS.get(name, {name: None}))]
