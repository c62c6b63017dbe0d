"""The paper's two tables of inference time: measured, kept, and drawn beside what it prints."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest

from kcl.cli.commands import main
from kcl.core.files import write_json
from kcl.paper.cell import FULL, QUICK, FinishedRuns
from kcl.paper.inference_time import PRINTED, InferenceTime, file_of
from kcl.report import figures

ROOT = Path(__file__).parents[2]


def _kept(folder: Path, kind: str = "cpu", **changes: Any) -> Path:
    """Times that grow with the coreset, and not with the bases."""
    rows = [
        {"table": table, "value": value, "queries": 1, "way": way, "ms": ms, "times_plain": None}
        for table, printed in PRINTED.items()
        for value in printed
        for way, ms in (("plain", 0.5 * value if table == "coreset" else 3.0), ("collapsed", 2.0))
    ]
    content = {"format": 1, "miniature": False, "command": "kcl reproduce", "device": kind, "threads": 1}
    content |= {"precision": "float32", "versions": {"kcl": "0.1.0", "torch": "2.6"}, "rows": rows}
    write_json(file_of(folder, kind), content | changes)
    return file_of(folder, kind)


def test_times_stand_beside_the_paper_s_with_their_growth(tmp_path: Path) -> None:
    _kept(tmp_path)
    _kept(tmp_path, "cuda", device="some GPU")
    rows = InferenceTime().rows(FinishedRuns([], FULL, [0], [tmp_path]))
    assert {row["device"] for row in rows} == {"the paper's", "cpu", "some GPU"}
    own = [r for r in rows if (r["table"], r["device"], r["way"]) == ("coreset", "cpu", "plain")]
    assert [row["seconds"] for row in own] == pytest.approx([0.0025, 0.005, 0.01, 0.02])
    assert [row["relative to the first"] for row in own] == pytest.approx([1.0, 2.0, 4.0, 8.0])
    text = InferenceTime().markdown(FinishedRuns([], FULL, [0], [tmp_path]))
    assert "| the paper | 1.7 | 1.7 | 1.7 | 1.8 | 1.00 | 1.00 | 1.00 | 1.06 |" in text
    assert "| one query, plain, cpu | 2.50 | 5.00 | 10.0 | 20.0 | 1.00 | 2.00 | 4.00 | 8.00 |" in text
    assert "| one query, collapsed, some GPU | 2.00 | 2.00 | 2.00 | 2.00 | 1.00 | 1.00 | 1.00 | 1.00 |" in text


def test_a_miniature_is_not_taken_for_the_paper_s_shape(tmp_path: Path) -> None:
    _kept(tmp_path, miniature=True)
    assert len(InferenceTime().rows(FinishedRuns([], FULL, [0], [tmp_path]))) == 8
    assert len(InferenceTime().rows(FinishedRuns([], QUICK, [0], [tmp_path]))) > 8


@pytest.mark.parametrize(
    "changes",
    [
        {"format": 2},
        {"rows": None},
        {"rows": [{"table": "coreset"}]},
        {"rows": [{"table": "coreset", "value": 5, "queries": 1, "way": "plain", "ms": 0.0}]},
        {"rows": [{"table": "coreset", "value": 5, "queries": 1, "way": "plain", "ms": "1"}]},
        {"threads": "1"},
        {"versions": None},
        {"command": "two\nlines"},
    ],
)
def test_a_file_that_is_none_of_ours_is_refused_in_one_line(
    changes: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = _kept(tmp_path, **changes)
    arguments = ["reproduce", "inference-time", "--report-only", "--results", str(tmp_path)]
    assert main([*arguments, "--out", str(tmp_path / "out")]) == 2
    message = capsys.readouterr().err
    assert str(path) in message
    assert message.count("\n") == 1


def test_the_miniature_is_measured_kept_and_drawn_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, again = tmp_path / "paper", tmp_path / "again"
    arguments = ["reproduce", "inference-time", "--quick", "--device", "cpu"]
    assert main([*arguments, "--out", str(out)]) == 0
    kept = json.loads(file_of(out, "cpu").read_text(encoding="utf-8"))
    assert kept["miniature"]
    assert kept["command"].startswith("kcl reproduce inference-time --quick")
    assert {path.name for path in (out / "inference-time").iterdir()} == {
        *("table.md", "table.csv"),
        *("figure.svg", "figure.pdf", "figure.png"),
    }
    assert main([*arguments, "--report-only", "--results", str(out), "--out", str(again), "--quiet"]) == 0
    for name in ("table.md", "table.csv", "figure.svg"):
        assert (again / "inference-time" / name).read_bytes() == (out / "inference-time" / name).read_bytes()
    capsys.readouterr()
    assert main([*arguments, "--out", str(out)]) == 2
    assert "add --resume" in capsys.readouterr().err
    assert main([*arguments, "--out", str(out), "--resume"]) == 0
    assert json.loads(file_of(out, "cpu").read_text(encoding="utf-8")) == kept


def test_without_matplotlib_there_are_tables_and_a_word(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(figures, "available", lambda: False)
    _kept(tmp_path)
    assert (
        main(["reproduce", "inference-time", "--report-only", "--results", str(tmp_path), "--out", str(tmp_path)]) == 0
    )
    assert {path.name for path in (tmp_path / "inference-time").iterdir()} == {"table.md", "table.csv"}
    assert "no figures were drawn" in capsys.readouterr().err


def test_the_committed_measurements_are_drawn(tmp_path: Path) -> None:
    runs = FinishedRuns([], FULL, [0], [ROOT / "results" / "inference-time"])
    InferenceTime().write(runs, tmp_path)
    with (tmp_path / "inference-time" / "table.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert {row["way"] for row in rows} == {"published", "plain", "uncollapsed", "collapsed", "backbone"}
    page = (ROOT / "docs" / "inference.md").read_text(encoding="utf-8")
    table = (tmp_path / "inference-time" / "table.md").read_text(encoding="utf-8")
    for line in table.splitlines():
        if line.startswith("| one query, "):
            assert line in page
