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
from kcl.experiments.run_spec import RunSpec

TASKS = 3
HELD_OUT = 0.1
JUDGED_BY = {
    "all": "average accuracy on the samples held out, after the last of the tasks, averaged over seeds",
    "old": "accuracy on the samples held out of all tasks but the last, after the last, averaged over tasks and seeds",
}
"""At the end of a long stream nearly all tasks are old, at the end of a short one a good part is new: what remembers
well is found by the old ones.
"""
NONE_OLD = "--judge-by old: after one task there is none that is old; look at two or more"


@dataclass(frozen=True)
class Protocol:
    """What decides between settings; recorded with every result that follows from it."""

    tasks: int | None
    """The first so many of the stream; None: all of them, which is no longer continual and is recorded as such."""
    held_out: float
    """The share of every class's training samples that settings are chosen by."""
    seeds: tuple[int, ...]
    test_data_seen: bool = False
    chosen_by: str = JUDGED_BY["all"]

    def __post_init__(self) -> None:
        if self.tasks is not None and self.tasks < 1:
            raise KclError(f"--first must be a number of tasks from 1, or all, not {self.tasks}")
        if not 0.0 < self.held_out < 1.0:
            raise KclError(f"--held-out must lie between 0 and 1, not {self.held_out:g}")

    @property
    def by_old(self) -> bool:
        return self.chosen_by == JUDGED_BY["old"]

    def to_dict(self) -> dict[str, Any]:
        return asdict(self) | {"seeds": list(self.seeds)}

    def specs(self, base: RunSpec, changes: Mapping[str, Any]) -> list[RunSpec]:
        """The runs that judge some settings: one for every seed."""
        tasks = base.tasks if self.tasks is None else min(self.tasks, base.tasks or self.tasks)
        if self.by_old and tasks == 1:
            raise KclError(NONE_OLD)
        own = replace(base, settings=base.settings.replace(**changes), tasks=tasks, held_out=self.held_out)
        return [replace(own, seed=seed) for seed in self.seeds]

    def value(self, records: Sequence[Mapping[str, Any]]) -> float:
        """What is to be made large; a run that diverged has an accuracy of zero."""
        return sum(map(self._accuracy, records)) / len(records)

    def _accuracy(self, record: Mapping[str, Any]) -> float:
        if not self.by_old or record["average_accuracy"] is None:
            return record["average_accuracy"] or 0.0
        *old, _ = record["accuracy_matrix"][-1]
        if not old:  # a stream whose length its data decide
            raise KclError(NONE_OLD)
        return sum(old) / len(old)
