"""How settings are chosen without cheating: on the stream's first tasks, by training samples held out of learning.

A continual learner meets its tasks one after another, and settings must be fixed before the later ones are known. So
only the first tasks are looked at (three, unless asked otherwise), and of those only training samples: a share of them
is held out of learning and decides. The test data are not part of what the runs are given. Then the whole stream is
learned once with the winner, and tested.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from kcl.errors import KclError
from kcl.run_spec import RunSpec

TASKS = 3
HELD_OUT = 0.1


@dataclass(frozen=True)
class Protocol:
    """What decides between settings; recorded with every result that follows from it."""

    tasks: int | None
    """The first so many of the stream; None: all of them, which is no longer continual and is recorded as such."""
    held_out: float
    """The share of every class's training samples that settings are chosen by."""
    seeds: tuple[int, ...]
    test_data_seen: bool = False
    chosen_by: str = "average accuracy on the samples held out, after the last of the tasks, averaged over seeds"

    def __post_init__(self) -> None:
        if self.tasks is not None and self.tasks < 1:
            raise KclError(f"--first must be a number of tasks from 1, or all, not {self.tasks}")
        if not 0.0 < self.held_out < 1.0:
            raise KclError(f"--held-out must lie between 0 and 1, not {self.held_out:g}")

    def to_dict(self) -> dict[str, Any]:
        return asdict(self) | {"seeds": list(self.seeds)}

    def specs(self, base: RunSpec, changes: Mapping[str, Any]) -> list[RunSpec]:
        """The runs that judge some settings: one for every seed."""
        tasks = base.tasks if self.tasks is None else min(self.tasks, base.tasks or self.tasks)
        own = replace(base, settings=base.settings.replace(**changes), tasks=tasks, held_out=self.held_out)
        return [replace(own, seed=seed) for seed in self.seeds]

    def value(self, records: Sequence[Mapping[str, Any]]) -> float:
        """What is to be made large; a run that diverged has an accuracy of zero."""
        return sum(record["average_accuracy"] or 0.0 for record in records) / len(records)
