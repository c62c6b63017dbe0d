"""What the README shows is what happens."""

import json
import re
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from kcl.report import tables
from kcl.report.groups import group_runs
from kcl.results import read

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)


@pytest.mark.data
def test_the_first_example_learns(capsys: pytest.CaptureFixture[str]) -> None:
    smaller = BLOCKS[0].replace("tasks=5, train_per_task=2000", "tasks=2, train_per_task=600")
    assert smaller != BLOCKS[0]
    exec(compile(smaller, "README.md", "exec"), {})
    accuracies = [float(line) for line in capsys.readouterr().out.split()]
    assert len(accuracies) == 2
    assert min(accuracies) > 60


def test_own_arrays_and_backbone(
    capsys: pytest.CaptureFixture[str], seeded: Callable[[int], AbstractContextManager[None]]
) -> None:
    with seeded(0):  # the example draws its own data from PyTorch's global generator
        exec(compile(BLOCKS[1], "README.md", "exec"), {})
    accuracies, predicted = capsys.readouterr().out.split("\n", 1)
    assert min(json.loads(accuracies)) > 80
    assert set(re.findall(r"\d+", predicted.split("[")[1])) <= {"2", "3", "4"}


def test_the_table_is_what_the_results_give() -> None:
    rows = tables.rows(group_runs(read(ROOT / "results" / "demo" / "results.jsonl")))
    assert len(rows) == 2
    for row in rows:
        _, method, seeds, accuracy, _, forgetting, learning, _ = row
        assert seeds == "3"
        assert f"| {method} | {accuracy} | {forgetting} | {learning} |" in README
