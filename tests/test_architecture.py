"""docs/architecture.md names the files that a batch and a query really pass; no page names a file that is gone."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
NAMED = re.findall(r"\]\(\.\./src/kcl/([^)#]+)\)", PAGE)
MOST_FILES = 30
PACKAGE = ROOT / "src" / "kcl"
PAGES = [*(ROOT / name for name in ("README.md", "CONTRIBUTING.md")), *sorted((ROOT / "docs").glob("*.md"))]


@pytest.fixture(scope="module")
def measured() -> dict[str, list[str]]:
    pytest.importorskip("sklearn")
    command = [sys.executable, str(ROOT / "tools" / "tour.py"), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("part", ["stack", "step", "query"])
def test_every_file_passed_is_on_the_page(part: str, measured: dict[str, list[str]]) -> None:
    assert len(measured[part]) > 5
    assert set(measured[part]) <= set(NAMED)


def test_a_batch_passes_few_files(measured: dict[str, list[str]]) -> None:
    assert len({*measured["stack"], *measured["step"]}) <= MOST_FILES


def test_every_other_file_on_the_page_is_passed_too(measured: dict[str, list[str]]) -> None:
    entries = {"__init__.py", "errors.py"}
    assert set(NAMED) - entries <= {path for files in measured.values() for path in files}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_file_named_exists(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    links = re.findall(r"\]\((?!\w+:)([^)#]+)[^)]*\)", text)
    assert [link for link in links if not (page.parent / link).exists()] == []
    paths = re.findall(r"(?:`|python )((?:\w+/)+\w+\.(?:py|cu|cpp))", text)
    assert [path for path in paths if not any((folder / path).exists() for folder in (ROOT, PACKAGE))] == []


def test_every_package_is_drawn() -> None:
    [drawing] = re.findall(r"```\n(.*?)```", PAGE, flags=re.DOTALL)
    tools = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]
    layers = next(each["layers"] for each in tools["importlinter"]["contracts"] if each["type"] == "layers")
    packages = [name for layer in layers for name in layer.split(" | ") if (PACKAGE / name).is_dir()]
    assert [name for name in packages if f"│ {name} " not in drawing] == []
