"""All that lessons change of a `ContinualModel`, in one object that is replaced as a whole and never changed.

Who predicts takes one reference to it, so that a lesson in another thread is seen entirely or not at all.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import torch

from kcl.benchmarks.task import View
from kcl.methods.kcl_settings import KclSettings
from kcl.models.coreset_heads import CoresetHeads
from kcl.models.lessons import LearnedTask
from kcl.models.streaming_heads import StreamingHeads

if TYPE_CHECKING:
    from kcl.models.learned_model import LearnedModel

Part = TypeVar("Part")


@dataclass(frozen=True)
class ModelState:
    open: bool
    """Whether head and settings are still to be chosen, from the first samples."""
    head: str
    settings: KclSettings
    standardise: bool | None
    heads: CoresetHeads | StreamingHeads | None = None
    tasks: dict[str, LearnedTask] = field(default_factory=dict)
    history: list[dict[str, Any]] = field(default_factory=list)
    view: View = field(default_factory=View)
    dtype: torch.dtype = torch.float32
    columns: tuple[str, ...] = ()
    """Names of the input features, where they come from a table."""
    input_shape: tuple[int, ...] | None = None

    def fork(self) -> ModelState:
        """A state of its own for a lesson, which may change its heads."""
        heads = None if self.heads is None else self.heads.fork()
        return replace(self, heads=heads, tasks=dict(self.tasks), history=list(self.history))


class StatePart(Generic[Part]):
    """An attribute of a model that is a part of its state: to set it is to replace the state."""

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name.removeprefix("_")

    def __get__(self, model: LearnedModel, owner: type | None = None) -> Part:
        part: Part = getattr(model.state, self.name)
        return part

    def __set__(self, model: LearnedModel, value: Part) -> None:
        changed: dict[str, Any] = {self.name: value}
        model.state = replace(model.state, **changed)
