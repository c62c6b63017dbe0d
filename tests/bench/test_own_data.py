"""The harness of `benches/own_data.py`: streams, adapters, lines and tables. Offline, without optional packages."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("sklearn")
sys.path.insert(0, str(Path(__file__).parents[2] / "benches"))
import own_data
import own_data_models
import own_data_sources
import own_data_streams
import own_data_table

OFFLINE = (
    "digits-permuted",
    "digits-by-class",
    "wine-then-cancer",
    "wine-one-by-one",
    "diabetes-by-age",
    "moons-turning",
)


@pytest.mark.parametrize("name", OFFLINE)
def test_a_seed_fixes_a_stream(name: str) -> None:
    stream = own_data_streams.STREAMS[name]
    first, again, other = stream.tasks(0), stream.tasks(0), stream.tasks(1)
    for task, same in zip(first, again, strict=True):
        assert task.name == same.name
        for one, two in zip(task[1:], same[1:], strict=True):
            np.testing.assert_array_equal(one, two)
    assert any(not np.array_equal(a.test_x, b.test_x) for a, b in zip(first, other, strict=True))


@pytest.mark.parametrize("name", OFFLINE)
def test_classes_are_shared_or_new_as_the_scenarios_say(name: str) -> None:
    stream = own_data_streams.STREAMS[name]
    classes = [set(task.train_y.tolist()) for task in stream.tasks(0)]
    for task, own in zip(stream.tasks(0), classes, strict=True):
        assert set(task.test_y.tolist()) == own
    if "domain" in stream.scenarios:
        assert all(own == classes[0] for own in classes)
    else:
        assert sum(map(len, classes)) == len(set().union(*classes))


def test_a_split_shares_no_row() -> None:
    rows = np.arange(100.0)[:, None]
    task = own_data_sources.split("a", rows, np.arange(100) % 3, np.random.default_rng(0))
    assert sorted([*task.train_x[:, 0], *task.test_x[:, 0]]) == rows[:, 0].tolist()


def test_halves_hold_streams_of_every_kind() -> None:
    halves = [stream.half for stream in own_data_streams.STREAMS.values()]
    assert halves.count("development") == halves.count("final") >= 8


def test_a_stream_without_its_data_is_named(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
                                            tmp_path: Path) -> None:  # fmt: skip
    monkeypatch.delenv("KCL_DATA", raising=False)
    own_data_sources.clinc150_texts.cache_clear()
    own_data.main(["run", "--streams", "clinc150-hashed", "--out", str(tmp_path / "rows.jsonl")])
    assert "clinc150-hashed: left out" in capsys.readouterr().out
    assert not (tmp_path / "rows.jsonl").exists()


def test_running_centroids_are_those_of_all_rows_at_once() -> None:
    from sklearn.neighbors import NearestCentroid

    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(90, 4)), rng.integers(0, 3, 90)
    running = own_data_models.RunningCentroids()
    for part in (slice(0, 10), slice(10, 90)):
        running.partial_fit(x[part], y[part], classes=[])
    np.testing.assert_array_equal(running.predict(x), NearestCentroid().fit(x, y).predict(x))


def test_a_model_per_task_answers_with_classes_of_the_task() -> None:
    tasks = own_data_streams.STREAMS["digits-by-class"].tasks(0)
    learner = own_data_models.PerTask(lambda own: own_data_models.MODELS["GaussianNB"].make(own, 0))
    for task in tasks:
        learner.learn(task.train_x, task.train_y, task.name)
    for task in tasks:
        assert set(learner.predict(task.test_x, task.name)) <= set(task.train_y)


def test_lines_are_kept_once_and_tables_written(tmp_path: Path) -> None:
    out, page = tmp_path / "rows.jsonl", tmp_path / "page.md"
    command = ["run", "--streams", "wine-one-by-one", "moons-turning", "--seeds", "1", "--out", str(out), "--models"]
    command += ["ContinualModel", "GaussianNB", "nearest centroid", "logistic regression, refitted"]
    own_data.main(command)
    first = out.read_text(encoding="utf-8").splitlines()
    own_data.main(command)
    rows = [json.loads(line) for line in out.read_text(encoding="utf-8").splitlines()]
    assert len(rows) == len(first)
    assert len({tuple(row[name] for name in own_data_table.KEY) for row in rows}) == len(rows)
    for row in rows:
        assert "error" not in row
        assert 0.0 < row["accuracy"] <= 100.0
    page.write_text("a\n<!-- begin own-data-development -->\nold\n<!-- end own-data-development -->\nz\n")
    own_data.main(["table", "--out", str(out), "--into", str(page)])
    written = page.read_text(encoding="utf-8")
    assert "moons-turning" in written
    assert "old" not in written


def test_what_raises_is_right_about_nothing() -> None:
    class Broken(own_data_models.Learner):
        def learn(self, *_: Any) -> None:
            raise ValueError("no")

        def predict(self, *_: Any) -> np.ndarray:
            raise AssertionError

        def size(self) -> int:
            return 0

    model = own_data_models.Model("peer", lambda *_: Broken(), ())
    tasks = own_data_streams.STREAMS["moons-turning"].tasks(0)
    ((scenario, row),) = own_data.attempt(model, tasks, np.arange(2), 0, "shared", ["class"], True)
    assert (scenario, row["accuracy"], row["error"]) == ("class", 0.0, "ValueError: no")


def _row(model: str, stream: str, accuracy: float, variant: str, scenario: str = "task") -> dict[str, Any]:
    identity = {"model": model, "stream": stream, "half": "development", "scenario": scenario, "variant": variant}
    return identity | {"seed": 0, "accuracy": accuracy, "tasks": 2}


def test_the_stronger_variant_stands_for_a_peer() -> None:
    rows = [
        *(_row("ContinualModel", name, value, "named") for name, value in (("a", 90.0), ("b", 70.0))),
        *(_row("GaussianNB", name, value, "shared") for name, value in (("a", 95.0), ("b", 10.0))),
        *(_row("GaussianNB", name, value, "per task") for name, value in (("a", 80.0), ("b", 70.0))),
    ]
    outcome = own_data_table.Outcome(rows)
    assert outcome.chosen["GaussianNB", "task"] == "per task"
    ours, theirs = outcome.scenario("ContinualModel", "task"), outcome.scenario("GaussianNB", "task")
    assert own_data_table.mean_difference(ours, theirs) == pytest.approx(5.0)
    assert own_data_table.compared(ours, theirs) == ("+5.0", "1 / 1 / 0")
    assert own_data_table.share_won(ours, theirs) == pytest.approx(0.5)


def test_the_cost_of_a_lesson_is_measured_after_few_and_many(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(own_data.own_data_cost, "LESSONS", (2, 6))
    models = ["GaussianNB", "SGDClassifier"]
    own_data.main(["cost", "--tasks", "6", "--models", *models, "--out", str(tmp_path / "rows.jsonl")])
    rows = [json.loads(line) for line in (tmp_path / "cost.jsonl").read_text(encoding="utf-8").splitlines()]
    assert [(row["model"], row["tasks"]) for row in rows] == [
        ("GaussianNB", 2), ("GaussianNB", 6), ("SGDClassifier", 2), ("SGDClassifier", 6)]  # fmt: skip
    assert all(row["bytes"] > 0 for row in rows)
    assert len(own_data_table.thousand_tasks(rows).splitlines()) == 2 + len(rows)
