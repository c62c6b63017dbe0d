"""`kcl bench` measures what it says, where there is no plain loop to compare with and no GPU."""

import json
from pathlib import Path

import pytest
import torch

from kcl import bench, bench_inference
from kcl.cli import main
from kcl.errors import KclError
from kcl.settings import Settings


@pytest.fixture(autouse=True)
def _small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_rows_for_a_cpu(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    arguments = ["bench", "mnist", "--steps", "20", "--device", "cpu", "--threads", "1", "--json", "rows.json"]
    assert main(arguments) == 0
    written = json.loads((tmp_path / "rows.json").read_text(encoding="utf-8"))
    assert [row["engine"] for row in written["rows"]] == ["bare SGD step", "kcl"]
    for row in written["rows"]:
        assert row["runs"] == 1
        assert row["ms_per_step"] == row["ms_per_run_step"] > 0
        assert row["times_reference"] is None
    assert "ms/step" in capsys.readouterr().out
    assert written["command"].startswith("kcl bench mnist")


def test_unknown_work() -> None:
    with pytest.raises(KclError, match="cifar100"):
        list(bench.measure(["mnits"], [1], "cpu", (False,)))


def test_bad_numbers(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "--steps", "3"]) == 2
    assert capsys.readouterr().err.startswith("kcl: ")


def test_inference(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, values in (("CORESETS", (2, 3)), ("BASES", (16,)), ("TASKS", (2,)), ("QUERIES", (1, 150))):
        monkeypatch.setattr(bench_inference, name, values)
    rows = list(bench_inference.measure("cpu", bench_inference.QUERIES, bench_inference.TASKS))
    assert {(row.table, row.way) for row in rows} == {
        *((table, way) for table in ("coreset", "bases") for way in ("uncollapsed", "collapsed", "backbone")),
        ("tasks", "named task"),
        ("tasks", "task inferred"),
    }
    assert all(row.ms > 0 and row.times_plain is None for row in rows)
    monkeypatch.setattr(bench_inference, "measure", lambda device: iter(rows))
    assert main(["bench", "inference", "--device", "cpu", "--json", "rows.json"]) == 0
    assert json.loads((tmp_path / "rows.json").read_text(encoding="utf-8"))["rows"][0]["table"] == "coreset"
    assert "task inferred" in capsys.readouterr().out


def test_collapsed_and_uncollapsed_give_the_same_scores() -> None:
    model = bench_inference._Model(Settings(bases=32, coreset_size_per_class=2), 1, "cpu")
    torch.testing.assert_close(
        model.answerer.logits(model.queries[:5], 0), model.uncollapsed(model.queries[:5]), rtol=1e-4, atol=1e-5
    )
