"""Every example runs and says what it is meant to show."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[1] / "examples"


def _told(name: str, capsys: pytest.CaptureFixture[str]) -> str:
    runpy.run_path(str(FOLDER / f"{name}.py"), run_name="__main__")
    return capsys.readouterr().out


def test_rotating_digits(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("sklearn")
    told = _told("rotating_digits", capsys)
    rows = re.findall(r"^week \d +([\d.]+) +([\d.]+) +([\d.]+)$", told, flags=re.MULTILINE)
    assert len(rows) == 4
    for named, unnamed, surer in (map(float, row) for row in rows):
        assert named > 60
        assert unnamed > 50
        assert surer > named
    assert "saving and loading: True" in told


def test_new_topics(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("sklearn", minversion="1.6")
    told = _told("new_topics", capsys)
    assert min(float(value) for value in re.findall(r"([\d.]+) %", told)) > 80
    assert "football" in told


def test_sensors(capsys: pytest.CaptureFixture[str]) -> None:
    told = _told("sensors", capsys)
    assert min(float(value) for value in re.findall(r"(?:found|right) ([\d.]+) %", told)) > 80
    assert told.count("model: ") == 2


def test_every_example_is_here() -> None:
    assert {path.stem for path in FOLDER.glob("*.py")} == {"rotating_digits", "new_topics", "sensors"}
