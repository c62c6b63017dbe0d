"""`kcl report`: which files it takes, what it writes, what it refuses."""

from __future__ import annotations

from pathlib import Path

import pytest

from kcl.cli.commands import main
from kcl.cli.report_commands import default_title, find_results
from kcl.core.results import read

RESULTS = Path(__file__).parents[2] / "results"


def test_every_format_is_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    starts = {"html": b"<!DOCTYPE html>", "md": b"# naive SGD, KCL (vrf)", "png": b"\x89PNG", "pdf": b"%PDF"}
    for kind, start in starts.items():
        by_ending, by_format = tmp_path / f"one.{kind}", tmp_path / f"{kind}-two"
        assert main(["report", str(RESULTS / "demo"), "--out", str(by_ending)]) == 0
        assert main(["report", str(RESULTS / "demo"), "--out", str(by_format), "--format", kind, "--quiet"]) == 0
        assert by_ending.read_bytes() == by_format.read_bytes()
        assert by_ending.read_bytes().startswith(start)
    assert f"page: {tmp_path / 'one.html'}" in capsys.readouterr().out


def test_folders_files_and_folders_of_folders_are_taken_once(tmp_path: Path) -> None:
    for name in ("a/x", "a/y", "b"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "results.jsonl").touch()
    found = find_results([tmp_path / "a", tmp_path / "b", tmp_path / "a" / "x" / "results.jsonl"])
    assert [path.parent.name for path in found] == ["x", "y", "b"]


def test_a_run_made_again_counts_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    streams = RESULTS / "mnist-streams"
    files = [str(streams / "results.jsonl"), str(streams / "earlier-builds.jsonl")]
    assert main(["report", *files, "--out", str(tmp_path / "report.html")]) == 0
    assert "15 runs" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["missing"], "no such file or folder"),
        (["."], "no results.jsonl in it or below it"),
        ([str(RESULTS / "demo"), "--out", "report.docx"], "give one of these endings"),
        (["empty"], "there are no runs to report"),
    ],
)
def test_mistakes_are_told_in_a_line(
    arguments: list[str],
    told: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    if arguments == ["empty"]:
        Path("empty").touch()
    assert main(["report", *arguments]) == 2
    error = capsys.readouterr().err
    assert told in error
    assert error.count("\n") == 1
    assert not list(tmp_path.glob("report*"))


def test_titles_stay_short() -> None:
    demo = read(RESULTS / "demo" / "results.jsonl")
    assert default_title(demo) == "naive SGD, KCL (vrf) on permuted-mnist"
    many = [demo[0] | {"method": f"method {k}"} for k in range(4)]
    assert default_title(many) == "Comparison of 4 runs"
