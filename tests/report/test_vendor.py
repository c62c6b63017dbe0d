"""What the page contains of others is what the documentation says, with its licence, and nothing that reaches out."""

from __future__ import annotations

from importlib import resources
from pathlib import Path

import pytest

from kcl.errors import KclError
from kcl.report import charts

ROOT = Path(__file__).parents[2]


def test_the_library_is_the_documented_one() -> None:
    docs = (ROOT / "docs" / "report.md").read_text(encoding="utf-8")
    assert f"`{charts.PLOTLY_SHA256}`" in docs
    assert f"| {charts.PLOTLY_VERSION} |" in docs
    assert f"v{charts.PLOTLY_VERSION}" in charts.plotly()[:200]
    assert "MIT License" in resources.files("kcl.report").joinpath("vendor", "plotly-LICENSE").read_text(
        encoding="utf-8"
    )


def test_it_can_stand_inside_a_script_element() -> None:
    text = charts.plotly()
    assert "</script" not in text.lower()
    assert "<!--" not in text
    assert "\r" not in text  # a browser would read another line end, and find another hash


def test_another_file_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(charts, "PLOTLY_SHA256", "0" * 64)
    with pytest.raises(KclError, match="install kcl again"):
        charts.plotly()
