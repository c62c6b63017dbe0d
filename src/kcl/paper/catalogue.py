"""The paper's tables and figures by name, in its order."""

from __future__ import annotations

from kcl.errors import KclError
from kcl.paper.bases import Bases
from kcl.paper.comparison import Comparison
from kcl.paper.coreset_size import CoresetSize
from kcl.paper.courses import AllMethods, FirstTasks, NumberOfTasks
from kcl.paper.hyperparameters import Hyperparameters
from kcl.paper.inference_time import InferenceTime
from kcl.paper.item import Item
from kcl.paper.kernels import Kernels
from kcl.paper.memory_benefit import MemoryBenefit
from kcl.paper.ways import VariedWays
from kcl.settings import nearest

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


def find_items(names: list[str]) -> list[Item]:
    """The items named; `all` for all of them."""
    if names == ["all"]:
        return list(ITEMS.values())
    if not names:
        raise KclError(f"say what to reproduce: all, or some of {', '.join(ITEMS)}")
    for name in names:
        if name not in ITEMS:
            raise KclError(f"unknown table or figure {name!r}; {nearest(name, ['all', *ITEMS])}")
    return [ITEMS[name] for name in dict.fromkeys(names)]
