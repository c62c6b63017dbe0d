"""A short version of `make torture`."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

if os.name != "posix" or not Path("/proc/self/statm").exists():
    pytest.skip("forks and limits as Linux has them", allow_module_level=True)

sys.path.insert(0, str(Path(__file__).parent))
import connections
import kills
import mutations

# Python warns of forks in processes with threads; the one here has none that matter.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


def test_runs_that_are_killed_end_as_if_never_touched(tmp_path: Path) -> None:
    pytest.importorskip("sklearn")
    seen = kills.torture(tmp_path, 6)
    assert sum(own.kills for own in seen.values()) == 6
    assert sum(own.resumed for own in seen.values()) > 0


def test_searches_and_models_that_are_killed_end_as_if_never_touched(tmp_path: Path) -> None:
    pytest.importorskip("sklearn")
    pytest.importorskip("optuna")
    assert kills.torture_search(tmp_path / "search", 2).kills == 2
    assert kills.torture_model(tmp_path / "model", 4).kills == 4


def test_the_live_page_answers_among_connections_that_say_nothing_sensible(tmp_path: Path) -> None:
    line = mutations.formats()["results.jsonl"].whole.splitlines(True)[0]
    assert connections.torture(tmp_path, 100, line).requests == 20


@pytest.mark.parametrize("name", mutations.formats())
def test_changed_files_are_read_or_refused(name: str) -> None:
    seen = mutations.torture(mutations.formats()[name], 100)
    assert seen.mutations == 100
    if name == "checkpoint":
        assert seen.refused == 100


def test_a_change_is_a_change() -> None:
    import random

    whole = b'{"a": 1}' * 10
    assert all(mutations.mutate(whole, random.Random(seed)) != whole for seed in range(500))
