"""The search, by Optuna: it proposes some trials at a time, is told their values, and is kept in a journal file.

The next proposals depend only on the values so far and on the study's seed, not on where trials run or which ends
first: values are told in the order of the trials, and every draw has a seed of its own. So a search that was
interrupted continues as if it had not been.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from kcl.core.opening import regular
from kcl.core.packages import load_package
from kcl.core.randomness import derive
from kcl.errors import KclError
from kcl.experiments.run_spec import with_current_settings
from kcl.tuning.space import Space, same

RANDOM = 10
"""Trials drawn at random before the search learns from them."""


class Trial(NamedTuple):
    """A point of the space, and its value once it is known."""

    number: int
    settings: dict[str, Any]
    value: float | None = None


class Study:
    """A search in a space, which starts with some points. `about` is what else decides it: a journal must agree."""

    def __init__(
        self, path: Path, space: Space, seed: int, about: Mapping[str, Any], first: Sequence[dict[str, Any]] = ()
    ) -> None:
        self._optuna = load_package("optuna", "tune", "kcl tune needs Optuna")
        self._optuna.logging.set_verbosity(self._optuna.logging.ERROR)
        self._space, self._seed = space, seed
        path.parent.mkdir(parents=True, exist_ok=True)
        journal = self._optuna.storages.journal
        try:
            _repair(path)
            storage = self._optuna.storages.JournalStorage(journal.JournalFileBackend(str(path), lock_obj=_NoLock()))
            self._study = self._optuna.create_study(
                storage=storage, study_name="kcl", direction="maximize", load_if_exists=True
            )
        except (OSError, ValueError, KeyError) as error:
            raise KclError(f"{path} cannot be used as the journal of a search: {error}") from None
        request = json.dumps({**about, "search": [str(dimension) for dimension in space], "seed": seed}, sort_keys=True)
        before = self._study.user_attrs.get("asked")
        if before is None:
            self._study.set_user_attr("asked", request)
        elif difference := _difference(before, request):
            raise KclError(f"{path} holds another search: {difference}; choose another --out")
        trials = self._study.get_trials(deepcopy=False)
        queued = {same(trial.system_attrs.get("fixed_params", trial.params)) for trial in trials}
        for point in first:
            if same(point) not in queued:
                self._study.enqueue_trial(point)

    def ask(self, count: int) -> list[Trial]:
        """So many trials without a value, first those that were proposed before."""
        running = self._study.get_trials(states=[self._optuna.trial.TrialState.RUNNING])
        trials = [self._optuna.trial.Trial(self._study, trial._trial_id) for trial in running]
        trials += [self._study.ask() for _ in range(count - len(trials))]
        return [Trial(trial.number, self._suggest(trial)) for trial in trials[:count]]

    def _suggest(self, trial: Any) -> dict[str, Any]:
        """The point of a trial; values suggested before are not drawn again."""
        point = {}
        for place, dimension in enumerate(self._space):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # constant_liar is marked as experimental
                self._study.sampler = self._optuna.samplers.TPESampler(
                    seed=derive(self._seed, "trial", trial.number, place) % 2**32,
                    n_startup_trials=RANDOM,
                    constant_liar=True,
                )
                point[dimension.name] = dimension.suggest(trial)
        return point

    def tell(self, trial: Trial, value: float) -> None:
        self._study.tell(trial.number, value)

    @property
    def finished(self) -> list[Trial]:
        complete = self._study.get_trials(states=[self._optuna.trial.TrialState.COMPLETE])
        return [Trial(trial.number, dict(trial.params), trial.value) for trial in complete]

    @property
    def best(self) -> Trial:
        """The trial with the highest value; the first of equal ones."""
        return max(self.finished, key=lambda trial: (trial.value or 0.0, -trial.number))


class _NoLock:
    """In place of Optuna's lock of the journal, which outlives a process that is killed and is then waited for: the
    command holds a lock on the whole search.
    """

    def acquire(self) -> bool:
        return True

    def release(self) -> None:
        pass


def _repair(journal: Path) -> None:
    """Cut off an incomplete last line, left by a full disk or a power cut: lines written after it would be lost."""
    if journal.exists():
        with open(journal, "r+b", opener=regular) as file:
            content = file.read()
            if content.startswith(b"{"):  # other files are left as they are, and refused
                file.truncate(content.rfind(b"\n") + 1)


def _difference(old: str, new: str) -> str:
    """In which parts two searches differ; empty where they are the same, whichever version wrote them."""
    before, now = json.loads(old), json.loads(new)
    if isinstance(before.get("runs"), dict):
        before["runs"] = with_current_settings(before["runs"])
    names = [name for name in {**now, **before} if before.get(name) != now.get(name)]
    return "; ".join(f"{name} was {before.get(name)} and is {now.get(name)}" for name in names[:3])
