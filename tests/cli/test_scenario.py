"""`--scenario` from the command line to result lines, table, Markdown and page."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kcl.cli.commands import main
from kcl.report.results_table import WITHOUT_TASK

pytest.importorskip("sklearn")
STREAM = ["split-digits", "--tasks", "2", "--ways", "2", "--train-per-task", "100", "--device", "cpu"]


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("scenario") / "out"
    assert (
        main(["run", *STREAM, "--set", "scenario=task,class", "--seeds", "0,1", "--out", str(folder), "--quiet"]) == 0
    )
    return folder


def _records(out: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (out / "results.jsonl").read_text(encoding="utf-8").splitlines()]


def test_result_lines(out: Path) -> None:
    for seed in (0, 1):
        named, free = (record for record in _records(out) if record["seed"] == seed)
        assert (named["settings"]["scenario"], free["settings"]["scenario"]) == ("task", "class")
        assert named["fingerprint"] == free["fingerprint"]
        assert "task_confusion" not in named
        confusion = free["task_confusion"]
        right = 100.0 * sum(row[task] for task, row in enumerate(confusion)) / sum(map(sum, confusion))
        assert free["task_accuracy"] == pytest.approx(right)
        assert free["average_accuracy"] <= named["average_accuracy"]
        rows = free["accuracy_matrix"]
        averages = [rows[0][0], (rows[1][0] + rows[1][1]) / 2]
        assert free["average_incremental_accuracy"] == pytest.approx(sum(averages) / 2)


def test_report(out: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page, text = tmp_path / "report.html", tmp_path / "report.md"
    for path in (page, text):
        assert main(["report", str(out), "--out", str(path)]) == 0
    assert all(name in text.read_text(encoding="utf-8") for name in WITHOUT_TASK)
    assert 'id="confusion"' in page.read_text(encoding="utf-8")
    assert "class" in capsys.readouterr().out


def test_with_the_task_named_nothing_is_added(out: Path, tmp_path: Path) -> None:
    named = tmp_path / "named"
    assert main(["run", *STREAM, "--scenario", "task", "--out", str(named), "--quiet"]) == 0
    assert _records(named)[0]["accuracy_matrix"] == _records(out)[0]["accuracy_matrix"]
    assert main(["report", str(named), "--out", str(named / "report.md"), "--quiet"]) == 0
    assert not any(name in (named / "report.md").read_text(encoding="utf-8") for name in WITHOUT_TASK)
    assert 'id="confusion"' not in (named / "report.html").read_text(encoding="utf-8")
