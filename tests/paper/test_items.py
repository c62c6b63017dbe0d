"""The paper's tables and figures: the runs they need, the numbers they show, and what the paper prints."""

from __future__ import annotations

import csv
import dataclasses
import statistics
from pathlib import Path
from typing import Any

import pytest

from kcl.errors import KclError
from kcl.methods.recipes import published_settings
from kcl.paper.cell import FULL, QUICK, Cell, FinishedRuns
from kcl.paper.item import Item
from kcl.paper.reproduce import ITEMS, estimate, find_items, required_runs, write_report
from kcl.report.published import TABLE_5

SEEDS = [0, 1, 2]


def _record(cell: Cell, seed: int, accuracy: float, tasks: int = 20) -> dict[str, Any]:
    """A finished run as `results.jsonl` would have it: what the data decide is filled in."""
    [spec] = FULL.specs(cell, [seed])
    lower = [[accuracy if after >= task else None for task in range(tasks)] for after in range(tasks)]
    fields = dataclasses.asdict(spec) | {"tasks": tasks, "kernel": spec.kernel, "data": "some data"}
    if spec.benchmark.startswith("split"):
        fields |= {"ways": list(spec.ways) if isinstance(spec.ways, tuple) else 5, "class_order": "fixed"}
    measured = {"average_accuracy": accuracy, "forgetting": 0.05, "learning_accuracy": accuracy, "seconds": 1.0}
    return fields | measured | {"accuracy_matrix": lower, "diverged": False, "memory": {"samples": 1, "bytes": 2}}


@pytest.mark.parametrize("item", ITEMS.values(), ids=lambda item: item.name)
class TestEveryItem:
    def test_is_listed_under_its_name_with_its_place(self, item: Item) -> None:
        assert ITEMS[item.name] is item
        assert item.place.startswith(("Table", "Figure", "The appendix"))
        assert item.title

    @pytest.mark.parametrize("scale", [FULL, QUICK], ids=["full", "quick"])
    def test_asks_for_runs_at_published_settings_but_for_what_it_varies(self, item: Item, scale: Any) -> None:
        for cell in item.cells():
            for spec in scale.specs(cell, SEEDS):
                base = published_settings(spec.benchmark, spec.method)
                changed = {name for name, value in base.to_dict().items() if getattr(spec.settings, name) != value}
                assert changed <= set(cell.changes)
                assert spec.train_per_task is None

    def test_is_written_without_any_finished_run(self, item: Item, tmp_path: Path) -> None:
        written = item.write(FinishedRuns([], FULL, SEEDS), tmp_path)
        assert all(path.stat().st_size for path in written)
        assert (tmp_path / item.name / "table.md").read_text(encoding="utf-8").startswith(f"# {item.title}")

    def test_cells_stand_in_places_of_their_own(self, item: Item) -> None:
        places = [(cell.row, cell.column) for cell in item.cells()]
        assert len(set(places)) == len(places)


def test_the_paper_s_main_numbers() -> None:
    """Table 5 of the paper has 27 cells: Stable SGD was not run on miniImageNet."""
    assert sum(len(column) for column in TABLE_5.values()) == 27
    assert [TABLE_5[benchmark]["kcl"].accuracy for benchmark in TABLE_5] == [85.5, 81.8, 62.7, 53.3]


def test_hyperparameters_are_the_paper_s() -> None:
    for row in ITEMS["hyperparameters"].rows(FinishedRuns([], FULL, SEEDS)):
        values = list(row.values())[1:]
        assert values[:4] == values[4:], row


class TestFinishedRuns:
    def test_runs_are_found_once_they_are_finished(self) -> None:
        for item in ITEMS.values():
            for cell in item.cells():
                records = [_record(cell, seed, 60.0 + seed, tasks=11 if cell.ways == (3, 15) else 20) for seed in SEEDS]
                assert [run["seed"] for run in FinishedRuns(records, FULL, SEEDS).of(cell)] == SEEDS

    @pytest.mark.parametrize(
        "change", [{"tasks": 5}, {"train_per_task": 100}, {"class_order": "shuffled"}, {"ways": 10}]
    )
    def test_other_runs_are_not_taken_for_them(self, change: dict[str, Any]) -> None:
        [cell] = [cell for cell in ITEMS["kernels"].cells() if cell.row == "VRF"]
        assert FinishedRuns([_record(cell, 0, 60.0) | change], FULL, SEEDS).of(cell) == []

    def test_other_settings_are_not_taken_for_them(self) -> None:
        first, second = ITEMS["kernels"].cells()[:2]
        assert FinishedRuns([_record(first, 0, 60.0)], FULL, SEEDS).of(second) == []


def test_rows_hold_means_spreads_and_paired_differences() -> None:
    cells = ITEMS["kernels"].cells()
    accuracies = {"RBF": [50.0, 53.0, 56.0], "VRF": [61.0, 62.0, 66.0]}
    records = [
        _record(cell, seed, accuracies[cell.row][seed]) for cell in cells if cell.row in accuracies for seed in SEEDS
    ]
    by_name = {row["row"]: row for row in ITEMS["kernels"].rows(FinishedRuns(records, FULL, SEEDS))}
    rbf, linear = by_name["RBF"], by_name["linear"]
    assert rbf["accuracy"] == pytest.approx(53.0)
    assert rbf["accuracy: deviation"] == pytest.approx(3.0)
    differences = [-11.0, -9.0, -10.0]
    assert rbf["accuracy vs. VRF"] == pytest.approx(-10.0)
    half = 4.302653 * statistics.stdev(differences) / 3**0.5  # Student's t, 2 degrees of freedom
    assert rbf["accuracy vs. VRF: half of the 95 % interval"] == pytest.approx(half, rel=1e-5)
    assert rbf["accuracy minus paper"] == pytest.approx(53.0 - 56.86)
    assert (linear["seeds"], linear["accuracy"], linear["paper accuracy"]) == (0, None, 60.88)


def test_a_miniature_is_not_compared_with_the_paper(tmp_path: Path) -> None:
    assert all(row["accuracy minus paper"] is None for row in ITEMS["kernels"].rows(FinishedRuns([], QUICK, SEEDS)))
    ITEMS["kernels"].write(FinishedRuns([], QUICK, SEEDS), tmp_path)
    text = (tmp_path / "kernels" / "table.md").read_text(encoding="utf-8")
    assert QUICK.note in text
    assert "in miniature" in text


def test_runs_are_shared_between_items() -> None:
    everything = required_runs(list(ITEMS.values()), FULL, SEEDS)
    assert len({spec.key for spec in everything}) == len(everything)
    assert len(everything) < sum(len(item.specs(FULL, SEEDS)) for item in ITEMS.values())


def test_the_estimate_counts_groups_and_time() -> None:
    one = required_runs([ITEMS["kernels"]], FULL, SEEDS)
    guess = estimate(one)
    assert (guess.runs, guess.groups) == (21, 7)
    assert guess.minutes is not None
    assert guess.minutes > 0
    assert estimate(one + required_runs([ITEMS["bases"]], FULL, SEEDS)).minutes > guess.minutes
    assert estimate(required_runs([ITEMS["kernels"]], QUICK, SEEDS)).minutes is None


def test_everything_is_written_with_an_index(tmp_path: Path) -> None:
    cells = ITEMS["kernels"].cells()
    records = [_record(cell, seed, 60.0 + seed) for cell in cells for seed in SEEDS]
    index = write_report(find_items(["all"]), FinishedRuns(records, FULL, SEEDS), tmp_path)
    text = index.read_text(encoding="utf-8")
    for name in ITEMS:
        assert f"({name}/table.md)" in text
        with (tmp_path / name / "table.csv").open(encoding="utf-8", newline="") as file:
            list(csv.DictReader(file))
    assert "21 of 21 runs" in text


@pytest.mark.parametrize(("names", "words"), [([], "kernels"), (["kernles"], "did you mean kernels")])
def test_unknown_names_are_refused(names: list[str], words: str) -> None:
    with pytest.raises(KclError, match=words):
        find_items(names)
