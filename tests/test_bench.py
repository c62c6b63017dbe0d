"""`kcl bench` measures what it says, where there is no plain loop to compare with and no GPU."""

import json
from pathlib import Path

import pytest

from kcl import bench
from kcl.cli import main
from kcl.errors import KclError


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
