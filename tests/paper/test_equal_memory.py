"""Methods that replay with as many samples as KCL: their cells, and the searches for their settings."""

from __future__ import annotations

import dataclasses
import json
import shlex
from pathlib import Path

import pytest

from kcl.cli import tune_command
from kcl.cli.commands import _parser, main
from kcl.core.results import read
from kcl.methods.kcl_settings import KclSettings
from kcl.methods.strong_recipe import recipe_settings
from kcl.paper import equal_memory
from kcl.paper.cell import FULL, QUICK, FinishedRuns
from kcl.paper.columns import NOT_MEASURED
from kcl.paper.equal_memory import (
    CONTENDERS,
    RECIPES,
    TUNED,
    EqualMemory,
    ShuffledClasses,
    search_command,
    search_name,
)
from kcl.paper.strong_results import ALL_FOUR
from kcl.tuning.protocol import JUDGED_BY
from kcl.tuning.space import point_of

ROOT = Path(__file__).parents[2]
PAIRS = [(benchmark, method, recipe) for benchmark in ALL_FOUR for method in CONTENDERS for recipe in RECIPES]


def test_every_contender_has_kcl_s_samples_and_otherwise_its_recipe() -> None:
    for benchmark in ALL_FOUR:
        for recipe in RECIPES:
            kcl, *others = EqualMemory().with_recipe(benchmark, recipe)
            settings = FULL.specs(kcl, [0])[0].settings
            assert isinstance(settings, KclSettings)
            assert [cell.method for cell in others] == [*CONTENDERS]
            for cell in others:
                base = recipe_settings(recipe, benchmark, cell.method)
                chosen = TUNED.get((benchmark, cell.method, recipe), {})
                memory = {"memory_per_class": settings.coreset_size_per_class} if cell.method != "multi-task" else {}
                assert FULL.specs(cell, [0])[0].settings == base.replace(**memory, **chosen)


def test_shuffled_classes_are_the_same_runs_but_for_the_order() -> None:
    for cell in ShuffledClasses().cells():
        [spec], [fixed] = (FULL.specs(each, [3]) for each in (cell, dataclasses.replace(cell, class_order=None)))
        assert spec == dataclasses.replace(fixed, class_order="shuffled")
        assert fixed in EqualMemory().specs(FULL, [3])
    assert not ShuffledClasses().searches()


@pytest.mark.parametrize("pair", PAIRS, ids="-".join)
def test_a_search_follows_kcl_s_protocol_and_includes_the_recipe_s_own_values(pair: tuple[str, str, str]) -> None:
    benchmark, method, recipe = pair
    search, seeds = tune_command.parse(_parser().parse_args(shlex.split(search_command(*pair))[1:]))
    assert (search.base.benchmark, search.base.method) == (benchmark, method)
    assert search.protocol.chosen_by == JUDGED_BY["old"]
    assert (search.protocol.tasks, search.protocol.seeds, seeds) == (3, (100, 101, 102), [])
    assert search.planned is not None, "every point is tried"
    base = recipe_settings(recipe, benchmark, method)
    assert point_of(search.space, base) is not None


def test_the_table_has_what_the_committed_searches_chose() -> None:
    found = {}
    for path in (ROOT / "results" / "tuning" / "equal-memory").glob("*.json"):
        search = json.loads(path.read_text(encoding="utf-8"))
        assert search["protocol"]["test_data_seen"] is False
        [pair] = [pair for pair in PAIRS if search_name(*pair) == path.stem]
        base = recipe_settings(pair[2], pair[0], pair[1])
        chosen = search["best"]["settings"]
        found[pair] = {name: value for name, value in chosen.items() if getattr(base, name) != value}
    assert dict(TUNED) == found


def test_a_row_says_whether_its_settings_were_searched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(TUNED, ("split-cifar100", "a-gem", "strong"), {"lr": 0.1})
    monkeypatch.setitem(TUNED, ("split-cifar100", "multi-task", "strong"), {})
    item = EqualMemory()
    settings = {(row["benchmark"], row["row"]): row["settings"] for row in item.rows(FinishedRuns([], FULL, range(5)))}
    assert settings["Split CIFAR-100", "A-GEM, strong recipe"] == "lr=0.1"
    assert settings["Split CIFAR-100", "joint training, strong recipe"] == "the recipe's values"
    assert settings["Split CIFAR-100", "ER-Reservoir, strong recipe"] == "not searched"
    assert FULL.specs(equal_memory.contender("split-cifar100", "a-gem", "strong"), [0])[0].settings.lr == 0.1


def test_the_plan_names_every_search(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["reproduce", "equal-memory", "--dry-run", "--out", str(tmp_path / "out")]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split("  ", 1)[1].strip() for line in lines if line.startswith("search")] == EqualMemory().searches()
    assert len({*EqualMemory().searches()}) == len(PAIRS)


def test_the_miniature_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = [
        "--quick",
        "--seeds",
        "0",
        "--device",
        "cpu",
        "--without",
        "permuted-digits",
        "--without",
        "rotated-digits",
    ]
    assert main(["reproduce", "equal-memory", *options, "--out", str(tmp_path), "--quiet"]) == 0
    records = read(tmp_path / "results.jsonl")
    runs = FinishedRuns(records, QUICK, [0])
    text = EqualMemory().markdown(runs)
    assert text.count(NOT_MEASURED) == 2 * 2 * (1 + len(CONTENDERS))  # the two benchmarks left out
    kept = {record["memory"]["samples"] for record in records if record["method"] != "multi-task"}
    assert kept == {20 * 2 * 3, 30 * 2 * 3}
    capsys.readouterr()
