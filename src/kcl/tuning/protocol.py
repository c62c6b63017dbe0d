"""How settings are chosen without cheating: on the stream's first tasks, by held-out training samples.

A continual learner meets its tasks one after another, and settings must be fixed before the later tasks are known. So
only the first tasks are used (three by default), and of these only training samples: a share of them is held out and
decides. The runs never see the test data. Then the whole stream is learned once with the winner, and tested.
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
"""Recorded with the results. At the end of a long stream nearly all tasks are old, at the end of a short one many are
new: settings that remember well are found by the old tasks.
"""
NONE_OLD = "--judge-by old: after one task no task is old; use two or more"


@dataclass(frozen=True)
class Protocol:
    """How settings are compared; recorded with every result that depends on it."""

    tasks: int | None
    """How many tasks are used, from the first on; None: all, which is no longer continual, and is recorded."""
    held_out: float
    """The share of every class's training samples that is held out."""
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
        """The runs that measure some settings: one for every seed."""
        tasks = base.tasks if self.tasks is None else min(self.tasks, base.tasks or self.tasks)
        if self.by_old and tasks == 1:
            raise KclError(NONE_OLD)
        run = replace(base, settings=base.settings.replace(**changes), tasks=tasks, held_out=self.held_out)
        return [replace(run, seed=seed) for seed in self.seeds]

    def value(self, records: Sequence[Mapping[str, Any]]) -> float:
        """The value to maximise; a run that diverged has an accuracy of zero."""
        return sum(map(self._accuracy, records)) / len(records)

    def _accuracy(self, record: Mapping[str, Any]) -> float:
        if not self.by_old or record["average_accuracy"] is None:
            return record["average_accuracy"] or 0.0
        *old, _ = record["accuracy_matrix"][-1]
        if not old:  # a stream whose length depends on its data
            raise KclError(NONE_OLD)
        return sum(old) / len(old)
