"""What the engines are held against."""

from __future__ import annotations

from pathlib import Path

import pytest
from engine_commands import LONG, RUNS, finish, start


@pytest.fixture(scope="session")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """24 runs done in one process, one after another: 12 seeds with two learning rates."""
    pytest.importorskip("sklearn")
    out = tmp_path_factory.mktemp("reference") / "out"
    code, said = finish(start([*RUNS, "lr=0.1,0.05", "--seeds", "0..11", "--out", out]))
    assert code == 0, said
    return out


@pytest.fixture(scope="session")
def long_reference(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three longer runs that nothing happened to."""
    pytest.importorskip("sklearn")
    out = tmp_path_factory.mktemp("long") / "out"
    code, said = finish(start([*LONG, "--seeds", "0..2", "--out", out]))
    assert code == 0, said
    return out
