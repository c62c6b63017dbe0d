"""`kcl tune` as a user calls it: what it chose by, what it left, and that the test data decide nothing."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
import torch

from kcl.benchmarks.registry import BENCHMARKS
from kcl.cli import commands, execution
from kcl.core.locking import locked
from kcl.data import digits
from kcl.report import figures
from kcl.training.stopping import Interrupted
from kcl.tuning import search

pytest.importorskip("optuna")
pytest.importorskip("sklearn")

TUNE = ["tune", "permuted-digits", "--tasks", "4", "--train-per-task", "100", "--device", "cpu", "--quiet",
        "--set", "bases=16", "width=16", "coreset_size_per_class=2", "--search", "lr=0.01..1:log", "kernel=vrf,rbf",
        "--trials", "5", "--trials-at-once", "3"]  # fmt: skip


def _lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.fixture(scope="module")
def tuned(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("tuned") / "out"
    torch.set_num_threads(1)
    assert commands.main([*TUNE, "--out", str(out)]) == 0
    return out


def test_settings_are_chosen_on_three_tasks_and_samples_held_out(tuned: Path) -> None:
    trials, final, told = _lines(tuned / "trials" / "results.jsonl"), _lines(tuned / "results.jsonl"), None
    assert {(own["tasks"], own["held_out"]) for own in trials} == {(3, 0.1)}
    assert all(own["protocol"]["test_data_seen"] is False for own in trials)
    [whole] = final
    assert (whole["tasks"], whole.get("held_out")) == (4, None)
    told = json.loads((tuned / "tuning.json").read_text())
    values = {trial["number"]: trial["value"] for trial in told["trials"]}
    assert len(values) == 5
    assert told["best"]["value"] == max(values.values())
    assert max(own["average_accuracy"] for own in trials) == max(values.values())
    assert {name: whole["settings"][name] for name in ("lr", "kernel")} == told["best"]["settings"]
    assert whole["protocol"]["chosen"]["trial"] == told["best"]["number"]
    assert whole["protocol"]["search"] == ["lr=0.01..1.0:log", "kernel=vrf,rbf"]
    assert told["trials"][0]["settings"]["kernel"] == "vrf", "the published settings are among those tried"
    assert {path.name for path in tuned.iterdir()} == {
        "metrics.csv", "report.html", "results.jsonl", "search.png", "search.svg", "settings.json", "study.journal",
        "trials", "tuning.json",
    }  # fmt: skip


def test_a_search_and_the_folders_around_it_can_be_reported(
    tuned: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The trials, which were tested on held-out samples of a few tasks, are reported only where they are named."""
    out = tmp_path / "page.html"
    demo = Path(__file__).parents[2] / "results" / "demo"
    for folders, groups in (([tuned], 1), ([tuned.parent, demo], 3), ([tuned.parent, tuned / "trials"], 6)):
        assert commands.main(["report", *map(str, folders), "--out", str(out)]) == 0
        table = capsys.readouterr().out.split("\n\n")[0].splitlines()
        assert len(table) == 3 + groups
        assert out.read_text(encoding="utf-8").startswith("<!DOCTYPE html>")


def test_other_test_data_change_no_choice(tuned: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = digits.DIGITS.load()
    spoiled = dataclasses.replace(real, test_inputs=255 - real.test_inputs, test_labels=(real.test_labels + 3) % 10)
    benchmark = BENCHMARKS["permuted-digits"]._replace(load=lambda *_: spoiled)
    monkeypatch.setitem(BENCHMARKS, "permuted-digits", benchmark)
    assert commands.main([*TUNE, "--out", str(tmp_path / "out")]) == 0
    one, two = (json.loads((out / "tuning.json").read_text()) for out in (tuned, tmp_path / "out"))
    assert one["trials"] == two["trials"]
    assert one["best"] == two["best"]
    assert one["whole stream"] != two["whole stream"], "only the last test sees them"


def test_a_search_that_is_stopped_goes_on(
    tuned: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run, calls = execution.Execution.run, 0

    def stopped(self: Any, *given: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == 2:
            raise commands.Stopped(Interrupted(2), "0 of 3; to continue: kcl tune --resume")
        return run(self, *given)

    out = tmp_path / "out"
    with monkeypatch.context() as patched:
        patched.setattr(execution.Execution, "run", stopped)
        assert commands.main([*TUNE, "--out", str(out)]) == 130
    assert "--resume" in capsys.readouterr().err
    assert commands.main([*TUNE, "--out", str(out)]) == 2
    assert "holds a search already" in capsys.readouterr().err
    with locked(out, search.LOCK):
        assert commands.main([*TUNE, "--out", str(out), "--resume"]) == 2
    assert "in use by another kcl" in capsys.readouterr().err
    with monkeypatch.context() as patched:
        patched.setattr(figures, "available", lambda: False)
        assert commands.main([*TUNE, "--out", str(out), "--resume"]) == 0
    assert "needs matplotlib" in capsys.readouterr().err
    one, two = (json.loads((folder / "tuning.json").read_text()) for folder in (tuned, out))
    assert (one["trials"], one["best"]) == (two["trials"], two["best"])


def test_old_tasks_alone_decide_where_that_is_asked_for(tmp_path: Path) -> None:
    command = [*TUNE[: TUNE.index("--search")], "--seeds", "0,1", "--search", "lr=0.001,0.1", "--final-seeds", "none"]
    assert commands.main([*command, "--judge-by", "old", "--out", str(tmp_path)]) == 0
    told = json.loads((tmp_path / "tuning.json").read_text())
    assert "all tasks but the last" in told["protocol"]["chosen_by"]
    for trial in told["trials"]:
        own = [record for record in _lines(tmp_path / "trials" / "results.jsonl")
               if record["settings"]["lr"] == trial["settings"]["lr"]]  # fmt: skip
        old = [accuracy for record in own for accuracy in record["accuracy_matrix"][-1][:2]]
        assert len(old) == 4
        assert trial["value"] == pytest.approx(sum(old) / 4)
        assert trial["value"] != pytest.approx(sum(record["average_accuracy"] for record in own) / 2)


def test_choices_alone_are_all_tried_once_and_no_stream_is_learned_where_none_is_asked_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--search", "dropout=0.2,0.1", "kernel=rbf,vrf", "--final-seeds", "none", "--out", str(tmp_path / "out")]
    before = TUNE[: TUNE.index("--search")]
    before.remove("--quiet")
    assert commands.main([*before, *options]) == 0
    told = json.loads((tmp_path / "out" / "tuning.json").read_text())
    points = [(trial["settings"]["dropout"], trial["settings"]["kernel"]) for trial in told["trials"]]
    assert sorted(points) == [(0.1, "rbf"), (0.1, "vrf"), (0.2, "rbf"), (0.2, "vrf")]
    assert points[0] == (0.1, "vrf"), "the settings as they are come first"
    assert told["whole stream"] == []
    assert not (tmp_path / "out" / "results.jsonl").exists()
    assert "best of 4 trials" in capsys.readouterr().out


def test_settings_are_tried_one_at_a_time_where_that_is_asked_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = [own for own in TUNE[: TUNE.index("--search")] if own != "--quiet"] + ["--one-at-a-time"]
    command += ["--search", "dropout=0.2,0.1,0.3", "kernel=rbf,vrf", "test_draws=1,2", "--final-seeds", "none"]
    command += ["--out", str(tmp_path)]
    assert commands.main(command) == 0
    told = json.loads((tmp_path / "tuning.json").read_text())
    points = [tuple(trial["settings"].values()) for trial in told["trials"]]
    others = [(0.2, "vrf", 1), (0.3, "vrf", 1), (0.1, "rbf", 1), (0.1, "vrf", 2)]
    assert points == [(0.1, "vrf", 1), *others]
    assert "best of 5 trials" in capsys.readouterr().out
    assert commands.main([*command, "--resume"]) == 0
    assert json.loads((tmp_path / "tuning.json").read_text())["trials"] == told["trials"]
    command.remove("--one-at-a-time")
    assert commands.main([*command, "--resume"]) == 2
    assert "one at a time" in capsys.readouterr().err


def test_of_choices_all_are_tried_though_fewer_trials_before_drew_one_of_them_twice(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = [own for own in TUNE[: TUNE.index("--search")] if own != "--quiet"]
    command += ["--search", "dropout=0.2,0.1", "weight_average=0,0.9", "--final-seeds", "none", "--out", str(tmp_path)]
    told = []
    for trials in (["--trials", "3"], ["--resume"], ["--trials", "2", "--resume"]):
        assert commands.main([*command, *trials]) == 0
        tried = json.loads((tmp_path / "tuning.json").read_text())["trials"]
        told.append([tuple(trial["settings"].values()) for trial in tried])
    assert len(set(told[0])) < len(told[0]) == 3, "otherwise this shows nothing"
    assert set(told[1]) == {(0.1, 0.0), (0.1, 0.9), (0.2, 0.0), (0.2, 0.9)}
    assert told[2] == told[1]
    said = capsys.readouterr()
    assert f"{len(told[1])} of {len(told[1])} trials" in said.err
    assert said.out.count(f"best of {len(told[1])} trials") == 2


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--trials", "0"], "--trials must be"),
        (["--trials-at-once", "0"], "--trials-at-once must be"),
        (["--first", "some"], "--first must be"),
        (["--first", "0"], "--first must be"),
        (["--held-out", "1.5"], "--held-out must lie"),
        (["--judge-by", "old", "--first", "1"], "--judge-by old"),
        (["--judge-by", "old", "--first", "all", "--tasks", "1"], "--judge-by old"),
        (["--set", "lr=0.1,0.2"], "--search"),
        (["--search", "lr=1..2"], "given twice"),
        (["--method", "ewc"], "ewc has no setting 'bases'"),
        (["--final-seeds", "x"], "--final-seeds"),
        (["--force"], "--force"),
        (["--one-at-a-time"], "--one-at-a-time"),
    ],
)
def test_mistakes_are_one_sentence(
    tmp_path: Path, options: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert commands.main([*TUNE, "--out", str(tmp_path / "out"), *options]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert message in said
    assert not (tmp_path / "out").exists()
