"""What the engines are held against."""

from __future__ import annotations

from pathlib import Path

import pytest
from engine_commands import LONG, RUNS

from kcl.cli import commands


@pytest.fixture(scope="session")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """24 runs done in one process, one after another: 12 seeds with two learning rates."""
    pytest.importorskip("sklearn")
    out = tmp_path_factory.mktemp("reference") / "out"
    assert commands.main([*RUNS, "lr=0.1,0.05", "--seeds", "0..11", "--out", str(out), "--quiet"]) == 0
    return out


@pytest.fixture(scope="session")
def long_reference(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three longer runs that nothing happened to."""
    pytest.importorskip("sklearn")
    out = tmp_path_factory.mktemp("long") / "out"
    assert commands.main([*LONG, "--seeds", "0..2", "--out", str(out), "--quiet"]) == 0
    return out
