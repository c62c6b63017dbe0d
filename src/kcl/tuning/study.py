"""The search: Optuna's, asked for some trials at a time and told what they gave, kept in a journal file.

What is asked next depends on what was told before and on the study's seed alone, never on which trial was done first or
where: trials are told in their order, and every draw has a seed of its own. So a search that was stopped goes
on as if it had not been.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from kcl.core.randomness import derive
from kcl.errors import KclError
from kcl.experiments.run_spec import with_current_settings
from kcl.tuning.space import Space, same

INSTALL = 'pip install "kernel-continual-learning[tune]"'
RANDOM = 10
"""Trials drawn at random before the search begins to learn from them."""


class Trial(NamedTuple):
    """A point of the space, and what it gave where that is known."""

    number: int
    settings: dict[str, Any]
    value: float | None = None


class Study:
    """A search in a space, from its first points on; `about` says what else decides it, and is held against the
    journal's own."""

    def __init__(
        self, path: Path, space: Space, seed: int, about: Mapping[str, Any], first: Sequence[dict[str, Any]] = ()
    ) -> None:
        self._optuna, self._space, self._seed = _optuna(), space, seed
        begun = path.exists()
        path.parent.mkdir(parents=True, exist_ok=True)
        journal = self._optuna.storages.journal
        try:
            _mend(path)
            storage = self._optuna.storages.JournalStorage(journal.JournalFileBackend(str(path)))
            self._study = self._optuna.create_study(
                storage=storage, study_name="kcl", direction="maximize", load_if_exists=True
            )
        except (OSError, ValueError, KeyError) as error:
            raise KclError(f"{path} cannot be used as the journal of a search: {error}") from None
        asked = json.dumps({**about, "search": [str(own) for own in space], "seed": seed}, sort_keys=True)
        known = self._study.user_attrs.get("asked")
        if begun and known is not None and (difference := _difference(known, asked)):
            raise KclError(f"{path} holds another search: {difference}; choose another --out")
        if known is None:
            self._study.set_user_attr("asked", asked)
        trials = self._study.get_trials(deepcopy=False)
        known = {same(own.system_attrs.get("fixed_params", own.params)) for own in trials}
        for point in first:
            if same(point) not in known:
                self._study.enqueue_trial(point)

    def ask(self, count: int) -> list[Trial]:
        """As many trials that are not told yet: first those asked for before."""
        running = [own for own in self._study.trials if own.state == self._optuna.trial.TrialState.RUNNING]
        trials = [self._optuna.trial.Trial(self._study, own._trial_id) for own in running]
        while len(trials) < count:
            trials.append(self._study.ask())
        return [Trial(trial.number, self._suggest(trial)) for trial in trials[:count]]

    def _suggest(self, trial: Any) -> dict[str, Any]:
        """The point of a trial; what was suggested before is not drawn again."""
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
        complete = self._optuna.trial.TrialState.COMPLETE
        return [Trial(own.number, dict(own.params), own.value) for own in self._study.trials if own.state == complete]

    @property
    def best(self) -> Trial:
        """The highest value; of equal ones the first."""
        return max(self.finished, key=lambda trial: (trial.value or 0.0, -trial.number))


def _mend(journal: Path) -> None:
    """Cut off a last line that a full disk or a power cut left torn: what is written after it would be lost with it."""
    if journal.exists():
        with journal.open("r+b") as file:
            content = file.read()
            if content.startswith(b"{"):  # what is no journal is left as it is, and refused
                file.truncate(content.rfind(b"\n") + 1)


def _difference(known: str, asked: str) -> str:
    """In which parts two searches differ; empty where they are the same, whichever version wrote them."""
    before, now = json.loads(known), json.loads(asked)
    if isinstance(before.get("runs"), dict):
        before["runs"] = with_current_settings(before["runs"])
    names = [name for name in {**now, **before} if before.get(name) != now.get(name)]
    return "; ".join(f"{name} was {before.get(name)} and is {now.get(name)}" for name in names[:3])


def _optuna() -> Any:
    try:
        import optuna
    except ImportError:
        raise KclError(f"kcl tune needs Optuna; install it: {INSTALL}") from None
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    return optuna
