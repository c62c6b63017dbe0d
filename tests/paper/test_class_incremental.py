"""The tables of answers without a task: which runs they need, and that a small one can be done and shown."""

from __future__ import annotations

import pytest

from kcl.core.devices import Compute
from kcl.experiments.admission import admit
from kcl.experiments.run_spec import by_training
from kcl.methods.recipes import METHODS
from kcl.paper.cell import FULL, QUICK, FinishedRuns
from kcl.paper.class_incremental import HEADS, LIGHT_NAMED, MEMORY, NAMED, OTHERS
from kcl.paper.reproduce import WITHOUT_TASK, find_items, required_runs
from kcl.report.published import BENCHMARK_TITLES

ITEM = WITHOUT_TASK["class-incremental"]


def test_all_of_kcl_comes_from_three_trainings() -> None:
    specs = [spec for spec in ITEM.specs(FULL, [0]) if spec.method == "kcl"]
    streams = {(spec.benchmark, spec.ways) for spec in specs}
    assert len(specs) == len(streams) * (len(HEADS) + len(NAMED) + 2)
    assert len(by_training(specs)) == 3 * len(streams)


def test_every_method_stores_as_much_and_is_not_told_the_task() -> None:
    for cell in ITEM.cells():
        [spec] = FULL.specs(cell, [0])
        assert (spec.settings.scenario == "task") == (cell.row in (*NAMED, LIGHT_NAMED))
        kept = METHODS[spec.method].memory_setting
        if kept is not None:
            assert getattr(spec.settings, kept) == MEMORY.get(spec.benchmark, 20)
        if "softmax" in spec.settings.names():
            assert spec.settings.to_dict()["softmax"] == "all"
    assert {cell.benchmark for cell in ITEM.cells()} == set(BENCHMARK_TITLES)
    assert {cell.method for cell in ITEM.cells()} == {"kcl", *OTHERS.values()}


def test_the_miniature_fits_its_data() -> None:
    pytest.importorskip("sklearn")
    specs = required_runs([ITEM], QUICK, [0])
    assert len(admit(specs, Compute("cpu")).specs) == len(specs) > 50


def test_tables_without_results() -> None:
    runs = FinishedRuns([], FULL, [0])
    for item in find_items(list(WITHOUT_TASK)):
        assert item.markdown(runs).count("not measured yet") == len(item.cells())
        assert len({(row["benchmark"], row["row"]) for row in item.rows(runs)}) == len(item.cells())
