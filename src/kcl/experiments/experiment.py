"""The runs of one command: what the functions that group, train and record them have in common."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from kcl.experiments.admission import RunPlan
from kcl.experiments.resuming import Saving
from kcl.experiments.run_folder import ResultStore


@dataclass(frozen=True)
class Experiment:
    plan: RunPlan
    store: ResultStore
    command: str
    saving: Saving = field(default_factory=Saving)
    say: Callable[[str], None] = lambda _: None
    notes: Mapping[str, Any] = field(default_factory=dict)
    """Added to the result of every run."""
    save_samples: bool = False
    """Whether images of tasks, coresets and mistakes are saved."""
