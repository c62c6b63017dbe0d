"""The search in its journal: the same points whatever happened in between."""

from __future__ import annotations

import math
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("optuna")

from kcl.errors import KclError
from kcl.methods.kcl_settings import KclSettings
from kcl.tuning.search import Search, Study, Trial
from kcl.tuning.space import parse

SPACE = parse(["lr=0.001..1:log", "dropout=0..0.9", "kernel=vrf,rbf"], "kcl")


def _value(trial: Trial) -> float:
    """Highest at lr = 0.1 and no dropout."""
    return 90.0 - 10.0 * math.log10(trial.settings["lr"] / 0.1) ** 2 - 20.0 * trial.settings["dropout"]


def _searched(path: Path, trials: int, interrupted: bool = False) -> list[Trial]:
    study = Study(path, SPACE, seed=3, about={})
    while len(study.finished) < trials:
        batch = study.ask(4)
        if interrupted:
            study = Study(path, SPACE, seed=3, about={})
            assert study.ask(4) == batch, "what was asked and not told is asked again"
        for place, trial in enumerate(batch):
            study.tell(trial, _value(trial))
            if interrupted and place == 1:
                study = Study(path, SPACE, seed=3, about={})
                assert study.ask(2) == batch[2:]
    return study.finished


def test_a_search_that_was_stopped_goes_on_as_if_it_had_not_been(tmp_path: Path) -> None:
    whole = _searched(tmp_path / "whole", 20)
    assert _searched(tmp_path / "stopped", 20, interrupted=True) == whole
    assert len({trial.settings["lr"] for trial in whole}) == 20
    random, learned = whole[:10], whole[10:]
    assert sum(map(_value, learned)) > sum(map(_value, random)), "it learns where the good ones are"


def test_the_published_point_is_tried_first(tmp_path: Path) -> None:
    first = {"lr": 0.1, "dropout": 0.5, "kernel": "vrf"}
    study = Study(tmp_path / "study", SPACE, seed=0, about={}, first=[first])
    assert study.ask(2)[0] == Trial(0, first)


def test_points_given_are_tried_in_their_order_once_each_also_after_a_crash(tmp_path: Path) -> None:
    points = [{"lr": rate, "dropout": 0.5, "kernel": "vrf"} for rate in (0.1, 0.2, 0.05)]
    Study(tmp_path / "study", SPACE, seed=0, about={}, first=points[:2])  # the third was not written yet
    study = Study(tmp_path / "study", SPACE, seed=0, about={}, first=points)
    trials = study.ask(4)
    assert [trial.settings for trial in trials[:3]] == points
    assert trials[3].settings not in points


def test_points_that_are_all_but_equal_are_two_points(tmp_path: Path) -> None:
    points = [{"lr": 0.1, "dropout": 0.5, "kernel": "vrf"}, {"lr": 0.1000001, "dropout": 0.5, "kernel": "vrf"}]
    study = Study(tmp_path / "study", SPACE, seed=0, about={}, first=points)
    assert [trial.settings for trial in study.ask(2)] == points


def test_the_best_of_equals_is_the_first(tmp_path: Path) -> None:
    study = Study(tmp_path / "study", SPACE, seed=0, about={})
    for trial, value in zip(study.ask(4), (1.0, 5.0, 5.0, 2.0), strict=True):
        study.tell(trial, value)
    assert study.best.number == 1


def test_another_search_in_the_same_journal_is_refused(tmp_path: Path) -> None:
    Study(tmp_path / "study", SPACE, seed=0, about={"protocol": {"tasks": 3}})
    with pytest.raises(KclError, match="seed was 0 and is 1"):
        Study(tmp_path / "study", SPACE, seed=1, about={"protocol": {"tasks": 3}})
    with pytest.raises(KclError, match="protocol was"):
        Study(tmp_path / "study", SPACE, seed=0, about={"protocol": {"tasks": 2}})


def test_a_line_that_was_torn_costs_no_more_than_itself(tmp_path: Path) -> None:
    path = tmp_path / "study"
    for trial in Study(path, SPACE, seed=3, about={}).ask(2):
        Study(path, SPACE, seed=3, about={}).tell(trial, _value(trial))
    whole = path.read_bytes()
    path.write_bytes(whole[:-5])
    study = Study(path, SPACE, seed=3, about={})
    [again] = study.ask(1)
    assert again.number == 1, "what it gave was in that line"
    study.tell(again, _value(again))
    assert [trial.number for trial in Study(path, SPACE, seed=3, about={}).finished] == [0, 1]


def test_a_file_that_is_no_journal_is_refused(tmp_path: Path) -> None:
    (tmp_path / "study").write_text("this is no journal\n and not whole")
    with pytest.raises(KclError, match="journal of a search"):
        Study(tmp_path / "study", SPACE, seed=0, about={})
    assert (tmp_path / "study").read_text().endswith("and not whole")


class _Judge:
    """In place of a protocol: judges trials in the order in which they are trained, without any runs."""

    def __init__(self) -> None:
        self._asked: list[dict[str, Any]] = []

    def to_dict(self) -> dict[str, Any]:
        return {}

    def specs(self, _: Any, settings: dict[str, Any]) -> list[Any]:
        self._asked.append(settings)
        return []

    def value(self, _: Any) -> float:
        return _value(Trial(0, self._asked.pop(0)))


def _search(out: Path) -> Search:
    base = SimpleNamespace(fields=dict, settings=KclSettings())
    return Search(base, SPACE, _Judge(), trials=16, at_once=3, seed=3, out=out)  # type: ignore[arg-type]


def test_killed_after_any_trial_of_a_batch_the_search_goes_on_as_if_it_had_not_been(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = _search(tmp_path / "whole")
    whole.run(lambda *_: [], lambda _: None)
    tell = Study.tell

    def killed(self: Study, trial: Trial, value: float) -> None:
        tell(self, trial, value)
        raise KeyboardInterrupt

    monkeypatch.setattr(Study, "tell", killed)
    for _ in range(16):
        with pytest.raises(KeyboardInterrupt):
            _search(tmp_path / "killed").run(lambda *_: [], lambda _: None)
    assert _search(tmp_path / "killed").study.finished == whole.study.finished


def test_a_lock_that_a_killed_process_left_is_not_waited_for(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    first = Study(path, SPACE, 3, {}).ask(1)
    (tmp_path / "journal.lock").symlink_to(path)
    begun = time.monotonic()
    assert Study(path, SPACE, 3, {}).ask(1) == first
    assert time.monotonic() - begun < 20.0  # Optuna waits for 30 s
