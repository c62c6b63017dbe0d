"""The committed results, and what they say about the paper."""

import json
import re
import shlex
import statistics
from pathlib import Path

import pytest

from committed_results import ROOT, RUN_RESULTS
from kcl.cli import requested_runs
from kcl.cli.commands import _parser
from kcl.core.results import read
from kcl.paper.cell import FULL, QUICK, Cell, FinishedRuns
from kcl.paper.columns import NOT_MEASURED
from kcl.paper.item import Item
from kcl.paper.page_sections import judge, judge_forgetting, section
from kcl.paper.reproduce import ITEMS
from kcl.report.published import PaperResult
from kcl.report.summary import Summary, summarise

SEEDS = range(5)


def _committed() -> FinishedRuns:
    records = [record for name in ("paper", "baselines") for record in read(ROOT / "results" / name / "results.jsonl")]
    return FinishedRuns(records, FULL, SEEDS, [ROOT / "results" / "inference-time"])


@pytest.mark.parametrize("file", RUN_RESULTS, ids=lambda file: str(file.relative_to(ROOT)))
def test_committed_results_parse(file: Path) -> None:
    warnings: list[str] = []
    records = read(file, warnings.append)
    assert records
    assert not warnings
    assert all(record["command"].startswith("kcl ") and "--out /" not in record["command"] for record in records)
    identity = ("benchmark", "method", "seed", "settings", "tasks", "ways", "precision")
    keys = [json.dumps([record.get(name) for name in identity]) for record in records]
    assert len(set(keys)) == len(keys) or file.stem == "earlier-builds"


def test_numbers_are_given_where_there_are_some() -> None:
    """Joint training has a last row only; everything else has every row, with its spread over five seeds."""
    runs = _committed()
    rows = ITEMS["all-methods"].rows(runs)
    assert sum("multi-task" in row["row"] for row in rows) == 3
    assert len(rows) == 3 * (6 * 20 + 1)
    rows += ITEMS["first-tasks"].rows(runs)
    assert all(0.0 <= row["accuracy"] <= 100.0 and row["deviation"] > 0.0 for row in rows)
    [cell] = [cell for cell in ITEMS["first-tasks"].cells() if cell.benchmark == "rotated-mnist"]
    [row] = [row for row in rows if (row["benchmark"], row.get("task"), row["tasks learned"]) == (cell.column, 2, 8)]
    accuracies = [run["accuracy_matrix"][7][1] for run in runs.of(cell)]
    expected = statistics.mean(accuracies), statistics.stdev(accuracies)
    assert (row["accuracy"], row["deviation"]) == pytest.approx(expected)


def test_figures_have_bands_of_one_deviation() -> None:
    figures = pytest.importorskip("matplotlib.figure")
    figure = ITEMS["memory-benefit"].figure(_committed())
    assert isinstance(figure, figures.Figure)
    [cell] = [cell for cell in ITEMS["memory-benefit"].cells() if cell.row == "VRF, 10"]
    ours = _committed().summary(cell)
    assert ours is not None
    corners = figure.axes[0].collections[0].get_paths()[0].vertices
    heights = corners[corners[:, 0] == 10.0][:, 1]
    assert (heights.min(), heights.max()) == pytest.approx((ours.mean - ours.deviation, ours.mean + ours.deviation))


def test_memory_is_given_in_samples_and_bytes() -> None:
    comparison, runs = ITEMS["comparison"], _committed()
    kept = {(row["benchmark"], row["row"]): (row["samples kept"], row["bytes kept"]) for row in comparison.rows(runs)}
    samples, size = kept["Split miniImageNet", "kernel continual learning (VRF)"]
    assert (samples, kept["Permuted MNIST", "A-GEM"][0]) == (3000, 200)
    assert all(size > samples for samples, size in kept.values())
    assert f"| {samples:,} ({size:,}) |" in comparison.markdown(runs)


def test_every_published_accuracy_of_kcl_is_within_two_points() -> None:
    runs = _committed()
    for cell in ITEMS["comparison"].cells():
        if cell.method == "kcl" and cell.published:
            ours = runs.summary(cell)
            assert ours is not None
            assert ours.size == 5
            assert abs(ours.mean - cell.published.accuracy) < 2.0


def test_the_table_of_searches_has_the_measured_accuracies() -> None:
    page = (ROOT / "REPRODUCIBILITY.md").read_text(encoding="utf-8")
    records = read(ROOT / "results" / "searches" / "results.jsonl")
    rows = re.findall(r"^\| ([a-z-]+) \| ([a-z0-9-]+) \| `([^`]*)` \| (\S+) \|$", page, flags=re.MULTILINE)
    assert len(rows) > 20
    for method, benchmark, settings, accuracy in rows:
        wanted = {name: float(value) for name, _, value in (part.partition("=") for part in settings.split())}
        accuracies = [
            record["average_accuracy"]
            for record in records
            if (record["method"], record["benchmark"], record["tasks"]) == (method, benchmark, 5)
            and wanted.items() <= record["settings"].items()
        ]
        assert len(accuracies) == 2, settings
        assert accuracy == ("–" if None in accuracies else f"{sum(accuracies) / 2:.1f}")


@pytest.mark.parametrize("item", ITEMS.values(), ids=lambda item: item.name)
def test_a_cell_s_command_runs_the_cell(item: Item) -> None:
    runs = FinishedRuns([], FULL, SEEDS)
    for cell in item.cells():
        options = _parser().parse_args(shlex.split(runs.command(cell))[1:])
        assert [spec.key for spec in requested_runs.specs(options)] == [spec.key for spec in FULL.specs(cell, SEEDS)]


def test_a_command_names_the_precision_of_its_runs() -> None:
    cell = Cell("VRF", "split-cifar100")
    assert _committed().command(cell) == "kcl run split-cifar100 --seeds 0..4 --precision bf16"
    assert FinishedRuns([], FULL, [0, 2]).command(cell) == "kcl run split-cifar100 --seeds 0,2"


class TestVerdict:
    @pytest.mark.parametrize(
        ("mean", "words"),
        [
            (55.0, {"reproduced"}),
            (60.0, {"higher", "within 2 sd"}),
            (48.0, {"lower", "within 2 sd"}),
            (64.1, {"higher"}),
            (43.9, {"lower"}),
        ],
    )
    def test_is_a_test_of_the_means(self, mean: float, words: set[str]) -> None:
        """Two standard deviations of single runs are 10 points here; means of five are told apart by 6."""
        verdict = judge(Summary(5, mean, 3.0, None), PaperResult(54.0, 4.0))
        assert verdict is not None
        assert (verdict.difference, verdict.deviations) == pytest.approx((mean - 54.0, (mean - 54.0) / 5.0))
        assert verdict.reproduced == ("reproduced" in words)
        assert set(str(verdict).split(", ")) == words

    def test_has_the_p_value_of_welchs_test(self) -> None:
        stats = pytest.importorskip("scipy.stats")
        verdict = judge(Summary(5, 56.0, 3.0, None), PaperResult(54.0, 3.0))
        assert verdict is not None
        assert verdict.p == pytest.approx(
            stats.ttest_ind_from_stats(56.0, 3.0, 5, 54.0, 3.0, 5, equal_var=False).pvalue
        )

    def test_of_forgetting_knows_that_two_decimals_are_printed(self) -> None:
        paper = PaperResult(54.0, 4.0, 0.02)
        for mean, reproduced in ((0.0249, True), (0.0151, True), (0.027, False), (0.01, False)):
            verdict = judge_forgetting(Summary(5, mean, 0.0005, None), paper)
            assert verdict is not None
            assert verdict.reproduced is reproduced
        assert judge_forgetting(Summary(5, 0.02, 0.01, None), PaperResult(54.0, 4.0)) is None
        assert judge_forgetting(None, paper) is None

    def test_needs_both_numbers_and_a_spread(self) -> None:
        ours = summarise([50.0, 52.0])
        assert judge(None, PaperResult(50.0, 1.0)) is None
        assert judge(ours, None) is None
        assert judge(summarise([50.0]), PaperResult(50.0)) is None
        assert judge(ours, PaperResult(51.0)) is not None

    def test_missing_runs_are_named(self) -> None:
        empty = FinishedRuns([], FULL, SEEDS)
        printed = [cell for cell in ITEMS["kernels"].cells() if cell.published]
        assert section(ITEMS["kernels"], empty).count(NOT_MEASURED) == len(printed)
        assert section(ITEMS["bases"], empty).count(NOT_MEASURED) == len(ITEMS["bases"].cells())


class TestExplained:
    """A number that our settings miss, and that settings nearer to those behind it reproduce."""

    def row(self, ours: float, nearer: float | None) -> str:
        """ER-Reservoir's row, with all accuracies moved to these means."""
        means, records = {10: ours, 256: nearer}, []
        for record in read(ROOT / "results" / "baselines" / "results.jsonl"):
            mean = means[record["settings"]["recalled_per_step"]]
            if mean is not None:
                records.append({**record, "average_accuracy": mean + record["seed"] - 2.0})
        lines = section(ITEMS["comparison"], FinishedRuns(records, FULL, SEEDS)).splitlines()
        return next(line for line in lines if "ER-Reservoir" in line and "CIFAR" in line)

    def test_is_given_with_its_number_and_settings(self) -> None:
        row = self.row(60.0, 47.0)
        assert "explained: 47.00 ± 1.58" in row
        assert "`--set recalled_per_step=256`" in row

    @pytest.mark.parametrize(("ours", "nearer"), [(60.0, 58.0), (60.0, None), (47.0, 47.0)])
    def test_is_left_out_where_both_miss_it_or_ours_reproduce_it(self, ours: float, nearer: float | None) -> None:
        row = self.row(ours, nearer)
        assert "explained" not in row
        assert (row.split(" | ")[5] == "reproduced") == (ours == 47.0)

    def test_the_runs_are_part_of_what_is_run(self) -> None:
        runs = _committed()
        nearer = [cell.nearer for cell in ITEMS["comparison"].cells() if cell.nearer is not None]
        assert [len(runs.of(cell)) for cell in nearer] == [5] * 5
        specs = ITEMS["comparison"].specs(FULL, [0])
        changed = [spec for spec in specs if spec.settings.to_dict().get("recalled_per_step") == 256]
        assert [(spec.benchmark, spec.method) for spec in changed] == [("split-cifar100", "er-reservoir")]
        assert all(spec.settings.backbone == "mlp" for spec in ITEMS["comparison"].specs(QUICK, [0]))
