"""`kcl reproduce` from the command line, on the data that come with scikit-learn."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from kcl.cli.commands import main
from kcl.core.results import read
from kcl.paper.cell import FULL, QUICK
from kcl.paper.reproduce import ITEMS, estimate, required_runs


def _run(*arguments: str) -> int:
    try:
        return main(["reproduce", *arguments])
    except SystemExit as stop:
        return int(stop.code or 0)


def test_lists_what_there_is(capsys: pytest.CaptureFixture[str]) -> None:
    assert _run("--list") == 0
    shown = capsys.readouterr().out
    assert all(name in shown for name in ITEMS)


def test_says_what_it_would_do_and_does_nothing(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert _run("all", "--dry-run", "--out", str(tmp_path / "out")) == 0
    shown = capsys.readouterr().out
    assert re.search(r"about \d+ minutes \(\d+ with --workers 4\) on one NVIDIA H200", shown)
    assert not (tmp_path / "out").exists()


def test_everything_takes_less_than_an_hour_and_less_where_set_up_is_shared_out() -> None:
    specs = required_runs(list(ITEMS.values()), FULL, range(5))
    alone, shared = estimate(specs), estimate(specs, 4)
    assert alone.minutes is not None
    assert shared.minutes is not None
    assert shared.minutes < alone.minutes < 60.0
    assert (shared.runs, shared.groups) == (alone.runs, alone.groups)


def test_a_table_without_runs_needs_none(capsys: pytest.CaptureFixture[str]) -> None:
    assert _run("hyperparameters", "--dry-run") == 0
    assert "benchmarks  none" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "kernels"),
        (["kernel"], "did you mean kernels"),
        (["kernels", "--seeds", "x"], "expected whole numbers"),
        (["kernels", "--without", "split-cifar"], "did you mean split-cifar100"),
        (["kernels", "--report-only", "--results", "nowhere.jsonl"], "nowhere.jsonl"),
    ],
)
def test_mistakes_give_one_line(
    capsys: pytest.CaptureFixture[str], arguments: list[str], words: str, tmp_path: Path
) -> None:
    assert _run(*arguments, "--out", str(tmp_path / "out")) == 2
    shown = capsys.readouterr().err
    assert words in shown
    assert shown.count("\n") == 1


def test_the_miniature_of_everything_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Every table and figure, on the CPU, with bundled data; a second call has nothing left to do."""
    out = str(tmp_path / "paper")
    assert _run("all", "--quick", "--seeds", "0", "--out", out, "--quiet", "--device", "cpu") == 0
    finished = len(read(tmp_path / "paper" / "results.jsonl"))
    index = (tmp_path / "paper" / "index.md").read_text(encoding="utf-8")
    for name, item in ITEMS.items():
        runs = len(item.specs(QUICK, [0]))
        assert runs >= len(item.cells())
        assert f"{runs} of {runs} runs" in index or not runs
        assert (tmp_path / "paper" / name / "table.md").exists()
    assert _run("kernels", "--quick", "--seeds", "0", "--out", out, "--resume", "--device", "cpu") == 0
    assert "7 of 7 runs" in capsys.readouterr().err
    assert len(read(tmp_path / "paper" / "results.jsonl")) == finished
