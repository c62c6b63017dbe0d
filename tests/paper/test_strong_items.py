"""Beyond the paper: the strong recipe with all methods, its ingredients one by one, and its cost."""

from __future__ import annotations

import csv
import dataclasses
import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from kcl.benchmarks.registry import BENCHMARKS, find_benchmark
from kcl.cli import requested_runs
from kcl.cli.commands import _parser, main
from kcl.core.results import read
from kcl.experiments.run_spec import RunSpec, by_training
from kcl.experiments.speeds import BATCH, SPEEDS
from kcl.methods.kcl_settings import KclSettings
from kcl.methods.recipes import published_settings
from kcl.methods.strong_recipe import strong_settings
from kcl.paper.cell import FULL, QUICK, Cell, FinishedRuns, task_shapes
from kcl.paper.columns import NOT_MEASURED
from kcl.paper.item import Item
from kcl.paper.panels import MEASURES
from kcl.paper.reproduce import GROUPS, ITEMS, STRONG, WITHOUT_TASK, estimate, find_items, required_runs
from kcl.paper.strong_parts import GUARDS, RAMPS, Ablation, StrongHorizon, ingredients
from kcl.paper.strong_results import ALL_FOUR as FOUR
from kcl.paper.strong_results import (
    TARGETS,
    StrongCost,
    StrongResults,
    closer_to_the_paper,
    method_tests,
    with_last_weights,
)
from kcl.report.published import CIFAR100, MINIIMAGENET, PERMUTED, ROTATED
from kcl.report.summary import Summary
from reference_run import TRAINED

WITHOUT_TASK_ONLY = ("er-ace", "der++")
"""Methods that are made for tasks that nobody names."""

ROOT = Path(__file__).parents[2]
SEEDS = [0, 1, 2]


def _record(cell: Cell, seed: int, accuracy: float, **changes: Any) -> dict[str, Any]:
    [spec] = FULL.specs(cell, [seed])
    lower = [[accuracy if after >= task else None for task in range(20)] for after in range(20)]
    fields = dataclasses.asdict(spec) | {"tasks": 20, "kernel": spec.kernel, "data": "some data"}
    if spec.benchmark.startswith("split"):
        fields |= {"ways": 5, "class_order": spec.class_order or "fixed"}
    measured = {"average_accuracy": accuracy, "forgetting": 0.005, "learning_accuracy": 81.5}
    measured |= {"seconds": 300.0, "learning_seconds": [5.0] * 20, "runs_at_once": 5}
    costs = {"memory": {"samples": 1, "bytes": 2000, "average_bytes": 300}, "device": "some GPU", "precision": "tf32"}
    return fields | measured | costs | {"accuracy_matrix": lower, "diverged": False} | changes


def test_all_is_the_paper_s_and_strong_is_what_goes_past_it() -> None:
    assert find_items(["all"]) == list(ITEMS.values())
    assert find_items(["strong"]) == list(STRONG.values())
    assert find_items(["strong", "kernels", "strong-ablation"]) == [*STRONG.values(), ITEMS["kernels"]]
    assert not set(ITEMS) & set(STRONG)
    assert not set(GROUPS) & {*ITEMS, *STRONG}


@pytest.mark.parametrize("item", STRONG.values(), ids=lambda item: item.name)
class TestEveryItem:
    def test_every_command_asks_for_its_cell_s_runs(self, item: Item) -> None:
        for cell in item.cells():
            options = _parser().parse_args(shlex.split(FinishedRuns([], FULL, SEEDS).command(cell))[1:])
            assert [spec.key for spec in requested_runs.specs(options)] == [
                spec.key for spec in FULL.specs(cell, SEEDS)
            ]

    def test_runs_are_found_once_they_are_finished(self, item: Item) -> None:
        for cell in item.cells():
            runs = FinishedRuns([_record(cell, seed, 60.0) for seed in SEEDS], FULL, SEEDS)
            assert [run["seed"] for run in runs.of(cell)] == SEEDS

    def test_says_what_is_not_measured_and_writes_all_the_same(self, item: Item, tmp_path: Path) -> None:
        written = item.write(FinishedRuns([], FULL, SEEDS), tmp_path)
        assert all(path.stat().st_size for path in written)
        text = (tmp_path / item.name / "table.md").read_text(encoding="utf-8")
        assert NOT_MEASURED in text
        assert "of the paper. `kcl" not in text

    def test_cells_stand_in_places_of_their_own(self, item: Item) -> None:
        places = [(cell.row, cell.column) for cell in item.cells()]
        assert len(set(places)) == len(places)

    def test_the_miniature_leaves_out_what_an_mlp_cannot_see(self, item: Item) -> None:
        specs = item.specs(QUICK, SEEDS)
        assert specs
        assert all(spec.benchmark.endswith("digits") and not spec.settings.rotation_labels for spec in specs)
        averages = {strong_settings(benchmark, "kcl").weight_average for benchmark in FOUR}
        assert {0.0} < {spec.settings.weight_average for spec in specs} <= {0.0, *averages}


class TestResults:
    def test_every_method_stands_on_every_benchmark_kcl_first(self) -> None:
        cells = StrongResults().cells()
        strong = {(cell.benchmark, cell.method) for cell in cells if cell.recipe == "strong"}
        assert strong == {
            (benchmark, method) for benchmark in FOUR for method in TRAINED if method not in WITHOUT_TASK_ONLY
        }
        assert [cell.benchmark for cell in cells[:4]] == list(FOUR)
        assert all(cell.method == "kcl" for cell in cells[:8])
        for cell in cells:
            settings = (strong_settings if cell.recipe == "strong" else published_settings)(cell.benchmark, cell.method)
            assert FULL.specs(cell, [0])[0].settings == settings.replace(**cell.changes)
            if cell.method != "kcl":
                assert set(cell.changes) <= set(settings.names_at_test())
        assert not any(cell.changes for cell in cells[:8])

    def test_the_way_with_the_highest_accuracy_stands_for_another_method(self) -> None:
        row = "ER-Reservoir, strong recipe"
        ninth, half, last = method_tests(row, MINIIMAGENET)
        reaches = [(9.0, 0.9999), (2.0, 0.9999), (9.0, 0.0)]
        settings = [FULL.specs(cell, [0])[0].settings for cell in (ninth, half, last)]
        assert [(each.average_ramp, each.weight_average) for each in settings] == reaches
        assert len(by_training([FULL.specs(cell, [0])[0] for cell in (ninth, half, last)])) == 1

        def shown(**accuracies: float) -> Cell:
            named = {"ninth": ninth, "half": half, "last": last}
            records = [_record(named[name], seed, value) for name, value in accuracies.items() for seed in SEEDS]
            runs = FinishedRuns(records, FULL, SEEDS)
            [cell] = [each for each in StrongResults().shown(MINIIMAGENET, runs) if each.method == "er-reservoir"]
            assert cell.row == row
            [line] = [text for text in StrongResults().markdown(runs).splitlines() if runs.command(cell) in text]
            assert line.startswith(f"| {row} | {3 if records else 0} |")
            return cell

        assert shown().changes == {}
        assert shown(half=50.0).changes == {"average_ramp": 2.0}
        assert shown(ninth=60.0, half=50.0).changes == {}
        assert shown(ninth=60.0, half=50.0, last=61.0).changes == {"weight_average": 0.0}
        few = [_record(ninth, 0, 70.0), *(_record(half, seed, 50.0) for seed in SEEDS)]
        [cell] = [
            each for each in StrongResults().shown(MINIIMAGENET, FinishedRuns(few, FULL, SEEDS)) if each.row == row
        ]
        assert cell.changes == {"average_ramp": 2.0}

    def test_a_row_tells_spread_cost_target_and_command(self) -> None:
        first = StrongResults().cells()[0]
        runs = FinishedRuns([_record(first, seed, 80.0 + seed) for seed in SEEDS], FULL, SEEDS)
        text = StrongResults().markdown(runs)
        [line] = [line for line in text.splitlines() if line.startswith("| KCL, strong recipe | 3 |")]
        texts = [part.strip() for part in line.strip("|").split("|")]
        assert texts[2:6] == [
            "81.00 ± 1.00",
            "[78.52, 83.48]",
            "0.005 ± 0.000 [0.005, 0.005]",
            "0.000 ± 0.000 [0.000, 0.000]",
        ]
        assert texts[6:] == [
            "81.50 ± 0.00",
            "–",
            "2,000",
            "300",
            "84.48",
            "8",
            "20",
            "`kcl run split-cifar100 --recipe strong --seeds 0..2`",
        ]
        targets = [line for line in text.splitlines() if line.startswith("Target:")]
        assert re.findall(r"[≥≤] ([\d.]+)", targets[0]) == ["80", "0.01", "85"]
        assert re.findall(r": (met|not met)\b", targets[0]) == ["met", "met", "met", "not met"]
        assert [NOT_MEASURED in line for line in targets] == [False, True, True, True]
        assert "| generative KCL, as published | – | 72.80 |" in text
        row = StrongResults().rows(runs)[0]
        assert (row["target"], row["target met"], row["seconds per run"]) == (80.0, True, 20.0)

    @pytest.mark.parametrize(
        ("accuracy", "forgetting", "met"),
        [(80.0, 0.01, True), (79.9, 0.0, False), (90.0, 0.02, False), (None, None, None), (90.0, None, None)],
    )
    def test_a_target_is_met_by_both_numbers(
        self, accuracy: float | None, forgetting: float | None, met: bool | None
    ) -> None:
        summaries = [None if value is None else Summary(5, value, 0.0, 0.0) for value in (accuracy, forgetting)]
        assert TARGETS[CIFAR100].met(*summaries) is met

    @pytest.mark.parametrize(
        ("mean", "half_width", "words"),
        [
            (0.009, 0.001, "met"),
            (0.009, 0.002, "not certain"),
            (0.011, 0.002, "not certain"),
            (0.012, 0.001, "not met"),
        ],
    )
    def test_forgetting_meets_it_with_its_whole_interval_however_it_is_counted(
        self, mean: float, half_width: float, words: str
    ) -> None:
        accuracy, target, none = Summary(5, 84.0, 0.2, 0.2), TARGETS[CIFAR100], Summary(5, 0.0, 0.0, 0.0)
        forgetting = Summary(5, mean, 0.001, half_width)
        bounds = f"{words} [{mean - half_width:.4f}, {mean + half_width:.4f}]"
        for both in ((forgetting, none), (none, forgetting)):
            assert target.met(accuracy, *both) is (words == "met")
            assert bounds in target.sentence(accuracy, *both)

    def test_what_the_last_weights_had_just_learned_stands_beside_it(self) -> None:
        for cell in StrongResults().cells():
            tests = (cell, with_last_weights(cell))
            averaged, last = (FULL.specs(each, [0])[0] for each in tests)
            assert last.settings.weight_average == 0.0
            assert len(by_training([averaged, last])) == 1
        first = StrongResults().cells()[0]
        records = [
            _record(cell, seed, 80.0, learning_accuracy=learned)
            for cell, learned in ((first, 81.0), (with_last_weights(first), 86.0))
            for seed in SEEDS
        ]
        text = StrongResults().markdown(FinishedRuns(records, FULL, SEEDS))
        assert "| 81.00 ± 0.00 | 86.00 ± 0.00 |" in text

    def test_kcl_stands_with_its_variational_kernel_and_without_the_metric_beside_it(self) -> None:
        text = StrongResults().markdown(FinishedRuns([], FULL, SEEDS))
        for benchmark in FOUR:
            recipe = strong_settings(benchmark, "kcl")
            expected = [("vrf", recipe.shared_metric)]
            expected += [("linear", 0.0), ("vrf", 0.0)] if recipe.shared_metric else []
            cells = closer_to_the_paper(benchmark)
            settings = [FULL.specs(cell, [0])[0].settings for cell in cells]
            assert [(each.kernel_name, each.to_dict()["shared_metric"]) for each in settings] == expected
            assert all(FinishedRuns([], FULL, SEEDS).command(cell) in text for cell in cells)

    def test_a_miniature_has_no_targets_commands_and_printed_numbers(self) -> None:
        text = StrongResults().markdown(FinishedRuns([], QUICK, SEEDS))
        assert "Target" not in text
        assert "as published" not in text
        assert "`kcl run" not in text


class TestBuilds:
    def test_are_counted_and_older_rows_are_told(self) -> None:
        item, cell = STRONG["strong-cost"], StrongResults().cells()[0]

        def text(*digests: str | None) -> str:
            records = [
                _record(cell, seed, 80.0, versions={"code": digest} if digest else {})
                for seed, digest in enumerate(digests)
            ]
            return item.builds(FinishedRuns(records, FULL, SEEDS))

        assert text() == ""
        assert "3 from 1 (aaa)" in text("aaa", "aaa", "aaa")
        assert "older" not in text("aaa", "aaa", "aaa")
        assert "2 from 2 (aaa, bbb)" in text("bbb", None, "aaa")
        assert "1 do not say" in text("bbb", None, "aaa")

    def test_every_committed_row_is_what_its_command_runs_today(self) -> None:
        requested: dict[str, set[str]] = {}
        for record in read(ROOT / "results" / "strong" / "results.jsonl"):
            command = record["command"]
            if command not in requested:
                options = _parser().parse_args(shlex.split(command)[1:])
                if command.startswith("kcl run"):
                    specs = requested_runs.specs(options)
                else:
                    specs = required_runs(find_items(options.items), FULL, range(5))
                requested[command] = {_settings(spec) for spec in specs}
            assert _settings(RunSpec.from_fields(record)) in requested[command]


def _settings(spec: RunSpec) -> str:
    return json.dumps([spec.benchmark, spec.method, spec.seed, spec.settings.to_dict()])


class TestAverageHorizon:
    def test_all_rows_of_a_benchmark_are_the_recipe_s_one_training(self) -> None:
        for benchmark in RAMPS:
            cells = [cell for cell in StrongHorizon().cells() if cell.benchmark == benchmark]
            specs = [FULL.specs(cell, [0])[0] for cell in (*cells, Cell("", benchmark, recipe="strong"))]
            assert len(by_training(specs)) == 1
            assert [spec.settings for spec in specs].count(strong_settings(benchmark, "kcl")) == 2
        left_out = [cell for cell in Ablation().removed() if cell.row == "without the metric of all coresets"]
        assert FULL.specs(left_out[0], [0])[0] in StrongHorizon().specs(FULL, [0])

    def test_the_table_marks_the_recipe_and_the_figure_has_every_measure(self) -> None:
        cells = StrongHorizon().cells()
        records = [_record(cell, seed, 60.0 + place + seed) for place, cell in enumerate(cells) for seed in SEEDS]
        runs = FinishedRuns(records, FULL, SEEDS)
        text = StrongHorizon().markdown(runs)
        assert text.count("(the recipe)") == 2
        assert "| r = 1 | 3 | 61.00 ± 1.00 |" in text
        assert "| the last weights | 3 | 66.00 ± 1.00 |" in text
        figure = StrongHorizon().figure(runs)
        labels = [axes.get_ylabel() for axes in figure.axes]
        assert labels == [label for _ in RAMPS for label in MEASURES.values()]
        assert [len(axes.lines[0].get_xdata()) for axes in figure.axes] == [5] * 3 + [6] * 3
        assert [len(axes.lines[-1].get_xdata()) for axes in figure.axes] == [1] * 3 + [3] * 3


class TestAblation:
    def test_every_difference_from_the_paper_s_recipe_is_one_ingredient_or_a_guard(self) -> None:
        strong, paper = (recipe(CIFAR100, "kcl").to_dict() for recipe in (strong_settings, published_settings))
        differing = {name for name, value in strong.items() if paper[name] != value}
        named = [setting for settings in ingredients().values() for setting in settings]
        assert len(set(named)) == len(named)
        assert differing <= {*named, *GUARDS}
        assert len(ingredients()) >= 7

    def test_left_out_and_alone_change_one_ingredient_only(self) -> None:
        for cells, base in ((Ablation().removed(), strong_settings), (Ablation().alone(), published_settings)):
            recipe = base(CIFAR100, "kcl").to_dict()
            for cell, names in zip(cells[1:], ingredients().values(), strict=True):
                settings = FULL.specs(cell, [0])[0].settings.to_dict()
                changed = {name for name, value in settings.items() if recipe[name] != value}
                assert changed
                assert changed <= set(names)

    def test_what_acts_at_test_computes_no_more_while_training(self) -> None:
        runs = FinishedRuns([], FULL, SEEDS)
        whole, *others = Ablation().removed()
        for cell in others:
            if set(cell.changes) <= set(KclSettings.names_at_test()):
                assert runs.cost(cell)["images per sample"] == runs.cost(whole)["images per sample"]

    def test_rows_are_paired_with_their_own_recipe(self) -> None:
        cells = Ablation().cells()
        records = [_record(cell, seed, 50.0 + place + seed) for place, cell in enumerate(cells) for seed in SEEDS]
        rows = Ablation().rows(FinishedRuns(records, FULL, SEEDS))
        middle = len(cells) // 2
        assert [row["accuracy vs. its recipe"] for row in rows[:3]] == pytest.approx([0.0, 1.0, 2.0])
        assert {row["just learned"] for row in rows} == {81.5}
        assert [row["accuracy vs. its recipe"] for row in rows[middle : middle + 2]] == pytest.approx([0.0, 1.0])


class TestCost:
    def test_few_runs_are_asked_for_beside_those_of_the_table(self) -> None:
        shared = {spec.key for item in (StrongResults(), Ablation()) for spec in item.specs(FULL, [0])}
        assert len([spec for spec in StrongCost().specs(FULL, [0]) if spec.key not in shared]) == 4

    def test_the_figure_has_a_panel_for_compute_and_one_for_memory_of_every_benchmark(self) -> None:
        cells = StrongCost().cells()
        runs = FinishedRuns([_record(cell, seed, 60.0 + seed) for cell in cells for seed in SEEDS], FULL, SEEDS)
        figure = StrongCost().figure(runs)
        assert len(figure.axes) == 8
        for axes in figure.axes:
            assert len(axes.containers) == (13 if "CIFAR" in axes.get_title(loc="left") else 8)

    def test_costs_that_are_almost_alike_have_ticks_that_can_be_read(self) -> None:
        """As where nothing but KCL is measured: the strong recipe keeps hardly more than the paper's."""
        kept = {"strong": 6_194_240, "paper": 6_154_240}
        records = [
            _record(cell, seed, 60.0 + seed, memory={"samples": 1, "bytes": kept[cell.recipe]})
            for cell in StrongResults().shown(CIFAR100, FinishedRuns([], FULL, SEEDS))[:2]
            for seed in SEEDS
        ]
        figure = StrongCost().figure(FinishedRuns(records, FULL, SEEDS))
        [axes] = [panel for panel in figure.axes if panel.get_title(loc="left") == "Split CIFAR-100: memory"]
        low, high = axes.get_xlim()
        assert low <= 0.5 * min(kept.values())
        assert high >= 2.0 * max(kept.values())
        assert len([tick for tick in axes.get_xticks() if low <= tick <= high]) <= 4


class TestStreams:
    @pytest.mark.parametrize("name", ["permuted-digits", "rotated-digits", "split-digits"])
    def test_the_digits_have_the_samples_they_are_said_to_have(self, name: str) -> None:
        self._check(name, 2 if name == "split-digits" else None, 3)

    @pytest.mark.data
    @pytest.mark.parametrize("name", [PERMUTED, ROTATED, CIFAR100, MINIIMAGENET])
    def test_the_paper_s_streams_too(self, name: str) -> None:
        self._check(name, None, None if name.startswith("split") else 2)

    @pytest.mark.parametrize("name", [PERMUTED, ROTATED, CIFAR100, MINIIMAGENET])
    def test_a_run_on_fewer_samples_is_counted_by_them(self, name: str) -> None:
        spec = RunSpec(name, "kcl", 0, published_settings(name, "kcl"), 2, train_per_task=750)
        assert [len_train for len_train, _ in task_shapes(spec)] == [750, 750]

    @staticmethod
    def _check(name: str, ways: int | None, tasks: int | None) -> None:
        benchmark = find_benchmark(name)
        assert name in BENCHMARKS
        chosen = {} if ways is None else {"ways": ways}
        chosen |= {} if tasks is None else {"tasks": tasks}
        stream = benchmark.stream(benchmark.load(None, lambda _: None), seed=0, **chosen)
        spec = RunSpec(name, "kcl", 0, published_settings(name, "kcl"), tasks, ways=ways)
        assert [(len(task.train), task.ways) for task in stream] == task_shapes(spec)


class TestEstimate:
    def test_a_step_takes_what_was_measured_where_it_was_measured(self) -> None:
        for speed in SPEEDS.values():
            assert speed.step(speed.images) == pytest.approx(speed.kcl)
            assert speed.step(BATCH) == pytest.approx(speed.others)
            assert speed.memory(speed.images) == speed.gigabytes

    def test_rotations_updates_and_coresets_take_longer(self) -> None:
        def minutes(**changes: Any) -> float:
            guess = estimate(FULL.specs(Cell("", CIFAR100, changes=changes), range(5)))
            assert guess.minutes is not None
            return guess.minutes

        set_up = SPEEDS["cifar-resnet"].set_up / 60
        plain = minutes()
        assert minutes(updates_per_batch=2) - set_up == pytest.approx(2 * (plain - set_up))
        assert 3 < (minutes(rotation_labels=True) - set_up) / (plain - set_up) < 4
        assert minutes(coreset_size_per_class=40) > plain > minutes(coreset_size_per_class=5)

    def test_a_training_that_runs_share_is_counted_once(self) -> None:
        """Of the ablation, which leaves out and adds five ingredients that act at test only."""
        specs = Ablation().specs(FULL, range(5))
        trained = [sharing[0] for sharing in by_training(specs)]
        assert len(specs) - len(trained) == 5 * 2 * 5
        assert estimate(specs).minutes == pytest.approx(estimate(trained).minutes)

    def test_the_main_rows_come_first_and_are_the_cheaper_part(self) -> None:
        specs = required_runs(list(STRONG.values()), FULL, range(5))
        rows = [spec for spec in specs[:20] if spec.method == "kcl" and spec.settings.weight_average]
        assert rows == specs[:20]
        whole, main_rows = estimate(specs).minutes, estimate(rows).minutes
        assert whole is not None
        assert main_rows is not None
        assert main_rows < 0.25 * whole


class TestCommandLine:
    def test_the_miniature_runs_and_results_that_are_there_are_not_done_again(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        first, second = tmp_path / "first", tmp_path / "second"
        options = ["--quick", "--seeds", "0", "--device", "cpu"]
        options += ["--without", "permuted-digits", "--without", "rotated-digits"]
        assert main(["reproduce", "strong-ablation", *options, "--out", str(first), "--quiet"]) == 0
        done = len(read(first / "results.jsonl"))
        assert done == len(Ablation().specs(QUICK, [0]))
        assert main(["reproduce", "strong", *options, "--out", str(second), "--results", str(first), "--quiet"]) == 0
        split = {
            spec.key for spec in required_runs(list(STRONG.values()), QUICK, [0]) if spec.benchmark == "split-digits"
        }
        assert len(read(second / "results.jsonl")) == len(split) - done
        with (second / "strong-ablation" / "table.csv").open(encoding="utf-8", newline="") as file:
            seeds = {row["row"]: row["seeds"] for row in csv.DictReader(file)}
        assert seeds["the whole recipe"] == seeds["averaged weights alone"] == "1"
        assert seeds["rotation labels alone"] == "0"
        assert (second / "strong-cost" / "figure.svg").stat().st_size
        text = (second / "strong-results" / "table.md").read_text(encoding="utf-8")
        assert "The MLP sees no images" in text
        capsys.readouterr()

    def test_lists_what_goes_past_the_paper_apart(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["reproduce", "--list"]) == 0
        names = [line.split()[0] for line in capsys.readouterr().out.splitlines()]
        assert names == [*ITEMS, "all", "strong", *STRONG, *WITHOUT_TASK]

    def test_says_how_long_each_part_takes(self, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
        arguments = ["reproduce", "strong", "--dry-run", "--out", str(tmp_path / "out")]
        assert main(arguments) == 0
        without = capsys.readouterr().out
        assert all(f"  {name}" in without for name in STRONG)
        paper = ROOT / "results" / "paper"
        assert main([*arguments, "--results", str(paper)]) == 0
        finished = FinishedRuns(read(paper / "results.jsonl"), FULL, range(5))
        left = [spec for spec in required_runs(list(STRONG.values()), FULL, range(5)) if finished.find(spec) is None]
        assert f"runs               {len(left)}," in capsys.readouterr().out
        assert not (tmp_path / "out").exists()

    @pytest.mark.parametrize(
        ("arguments", "words"),
        [
            (["strong", "--results", "nowhere.jsonl"], "nowhere.jsonl"),
            (["strong", "--into", "page.md"], "--into needs --report-only"),
            (["stron"], "did you mean strong"),
        ],
    )
    def test_mistakes_give_one_line(self, arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["reproduce", *arguments]) == 2
        shown = capsys.readouterr().err
        assert words in shown
        assert shown.count("\n") == 1
