"""Every example of the gallery runs and says what it is meant to show."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[1] / "examples"


@pytest.fixture
def told(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> str:
    """What the example named like the test prints."""
    for module in ("sklearn", "matplotlib"):
        pytest.importorskip(module)
    monkeypatch.setattr("matplotlib.pyplot.show", lambda: None)  # no window
    runpy.run_path(str(FOLDER / f"{request.function.__name__.removeprefix('test_')}.py"))
    return capsys.readouterr().out


def _percents(line: str) -> list[float]:
    return [float(value) for value in re.findall(r"([\d.]+) %", line)]


def test_rotating_digits(told: str) -> None:
    scores = {line.split(":")[0]: _percents(line) for line in told.splitlines() if "%" in line}
    assert min(scores["week named"]) > 60
    assert min(scores["week not named"]) > 50
    assert all(sure > all_ for sure, all_ in zip(scores["the surer half"], scores["week named"], strict=True))
    assert "saving and loading: True" in told


def test_new_topics(told: str) -> None:
    assert min(_percents(told)) > 80
    assert "football" in told


def test_sensors(told: str) -> None:
    assert min(_percents(told)) > 80
    assert told.count("model: ") == 2


def test_one_class_at_a_time(told: str) -> None:
    exact, linear = _percents(told)
    assert exact > 90 > 50 > linear


def test_curve(told: str) -> None:
    errors = [float(value) for value in re.findall(r"error on them ([\d.]+)", told)]
    assert len(errors) == 4
    assert max(errors) < 0.1


def test_dirty_lens(told: str) -> None:
    [day] = re.findall(r"first alarm on day (\d+)", told)
    assert 5 <= int(day) <= 8


def test_every_example_is_tested() -> None:
    examples = {path.stem for path in FOLDER.glob("*.py")}
    assert examples == {name.removeprefix("test_") for name in globals()} & examples
